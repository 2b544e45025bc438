import subprocess
import sys
import threading
from collections.abc import Mapping

import pytest

from runner.tracking.metrics_log import check_metric_name
from runner.tracking.system import SystemMonitor, SystemSampler

TIMEOUT_S = 30.0
NEVER_S = 1e6


def test_values_are_plausible_and_named_for_their_section() -> None:
    sample = SystemSampler().sample()
    for name in sample:
        check_metric_name(name)
    assert 0 <= sample["system/cpu_utilization_percentage"] <= 100
    assert 0 < sample["system/system_memory_usage_percentage"] <= 100
    assert 0 < sample["system/run_memory_usage_megabytes"] < sample["system/system_memory_usage_megabytes"] * 10


def test_the_memory_of_child_processes_counts() -> None:
    sampler = SystemSampler()
    alone = sampler.sample()["system/run_memory_usage_megabytes"]
    code = "import sys; hold = bytearray(200_000_000); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        together = sampler.sample()["system/run_memory_usage_megabytes"]
        child.communicate()
    assert together > alone + 150


def test_a_monitor_samples_again_and_again_until_it_is_stopped() -> None:
    samples: list[Mapping[str, float]] = []
    enough = threading.Event()

    def note(values: Mapping[str, float]) -> None:
        samples.append(values)
        if len(samples) == 3:
            enough.set()

    monitor = SystemMonitor(every_s=0.001, on_sample=note)
    monitor.start()
    assert enough.wait(TIMEOUT_S)
    monitor.stop()
    count = len(samples)
    assert all("system/cpu_utilization_percentage" in values for values in samples)
    assert not any(thread.name == "system-monitor" for thread in threading.enumerate())
    assert len(samples) == count


def test_a_run_shorter_than_the_interval_is_sampled_once_with_the_cpu_it_used(monkeypatch: pytest.MonkeyPatch) -> None:
    known_threads: set[int] = set()

    def cpu_percent() -> float:
        """As psutil's: the first call of a thread has no interval to tell of."""
        first = threading.get_ident() not in known_threads
        known_threads.add(threading.get_ident())
        return 0.0 if first else 50.0

    monkeypatch.setattr("runner.tracking.system.psutil.cpu_percent", cpu_percent)
    samples: list[Mapping[str, float]] = []
    monitor = SystemMonitor(every_s=NEVER_S, on_sample=samples.append)
    monitor.start()
    monitor.stop()
    assert [sample["system/cpu_utilization_percentage"] for sample in samples] == [50.0]
