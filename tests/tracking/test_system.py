from __future__ import annotations

import subprocess
import sys

from runner.tracking.metrics_log import check_metric_name
from runner.tracking.system import SystemSampler


def test_a_sample_is_taken_at_most_every_interval() -> None:
    sampler = SystemSampler(every_s=5.0)
    assert sampler.sample_if_due(100.0)
    assert sampler.sample_if_due(104.9) == {}
    assert sampler.sample_if_due(105.0)


def test_values_are_plausible_and_named_for_their_section() -> None:
    sample = SystemSampler(every_s=5.0).sample_if_due(0.0)
    for name in sample:
        check_metric_name(name)
    assert 0 <= sample["system/cpu_utilization_percentage"] <= 100
    assert 0 < sample["system/system_memory_usage_percentage"] <= 100
    assert 0 < sample["system/run_memory_usage_megabytes"] < sample["system/system_memory_usage_megabytes"] * 10


def test_the_memory_of_child_processes_counts() -> None:
    sampler = SystemSampler(every_s=0.0)
    alone = sampler.sample_if_due(0.0)["system/run_memory_usage_megabytes"]
    code = "import sys; hold = bytearray(200_000_000); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        together = sampler.sample_if_due(1.0)["system/run_memory_usage_megabytes"]
        child.communicate()
    assert together > alone + 150
