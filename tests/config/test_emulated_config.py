"""Descriptions of links and stragglers: what the cost model, the session and the reader of a report are told."""

from __future__ import annotations

import pytest

from runner.commands.explanation import explain
from runner.engine.cluster.emulation import Emulation, Link, Stragglers
from runner.engine.graph.device import Cluster, Device
from runner.training.build import build
from tests.small_runs import small_config

TWO_WORKERS = ("parallelism=sync_data", "parallelism.workers=2")


def test_without_a_description_the_network_is_real_and_the_cost_model_has_its_defaults() -> None:
    experiment = build(small_config(*TWO_WORKERS))
    assert experiment.emulation is None
    assert (experiment.cluster.latency_s, experiment.cluster.bytes_per_s) == (Cluster.latency_s, Cluster.bytes_per_s)


@pytest.mark.parametrize("emulate", [True, False])
def test_the_cost_model_takes_links_as_described_whether_emulated_or_not(emulate: bool) -> None:
    experiment = build(small_config(*TWO_WORKERS, "cluster=slow_network", f"cluster.emulate={emulate}"))
    assert (experiment.cluster.latency_s, experiment.cluster.bytes_per_s) == (0.5e-3, 12.5e6)
    assert experiment.emulation == (Emulation(Link(0.5e-3, 12.5e6), Stragglers()) if emulate else None)


def test_stragglers_are_drawn_by_the_seed_of_the_run() -> None:
    lognormal = ("distribution=lognormal", "median_ms=20", "sigma=0.5", "workers=[1]")
    described = (f"cluster.stragglers.{each}" for each in lognormal)
    experiment = build(small_config(*TWO_WORKERS, *described, "cluster.emulate=true", "seed=5"))
    assert experiment.emulation == Emulation(Link(), Stragglers("lognormal", 0.02, 0.5, (1,), seed=5))


def test_explain_says_emulated_and_takes_the_described_times() -> None:
    slow = (*TWO_WORKERS, "cluster=slow_network", "cluster.latency_ms=1000")
    emulated, described = (explain(small_config(*slow, f"cluster.emulate={on}")) for on in ("true", "false"))
    assert "network                 emulated: 100 Mbit/s, 1000 ms, no stragglers" in emulated
    assert "emulated" not in described
    rows = [line.split() for line in described.splitlines() if line.startswith("/job:worker")]
    wires = [row for row in rows if len(row) == 6 and row[1].startswith("/job")]
    assert len(wires) == 2
    for *_, messages, _, transfer_ms, _ in wires:
        assert float(transfer_ms.replace(",", "")) >= 1000 * int(messages)


@pytest.mark.parametrize(("threads", "cores", "worth"), [(1, 0.5, 0.5), (1, 4.0, 1.0), (3, 2.0, 2.0)])
def test_estimates_know_how_many_cores_a_worker_has(threads: int, cores: float, worth: float) -> None:
    described = (f"cluster.threads_per_worker={threads}", f"cluster.cores_per_worker={cores}")
    for device in build(small_config(*TWO_WORKERS, *described)).cluster.devices:
        assert (device.flops_per_s, device.bytes_per_s) == (worth * Device.flops_per_s, worth * Device.bytes_per_s)
