"""The choice of the library that sums gradients on GPUs, and the reported reason if it is not NCCL."""

from dataclasses import replace

import pytest

from runner.commands.train import _continued
from runner.config.configuration import fix_machine_values, to_plain
from runner.config.devices import assign_devices, reassign_devices, sums_text
from runner.config.outcome import differing_keys, outcome_hash
from runner.config.schema import Config
from runner.errors import ConfigError
from runner.kernels.gpu.discovery import Found, Library
from tests.gpus import NO_DRIVER, gpu, machine
from tests.small_runs import composed_config

SUMMED = ("parallelism=sync_data", "parallelism.workers=2", "parallelism.combine=all_reduce", "tracking=none")


def with_nccl(*gpus: int) -> Found:
    """Return the description of a machine with NCCL and GPUs of these numbers."""
    found = machine(*map(gpu, gpus))
    return replace(found, libraries=(*found.libraries, Library("NCCL", "2.32.3", "")))


TWO = with_nccl(0, 1)
WITHOUT = machine(gpu(0), gpu(1))
HIGH16 = "cluster.compression=high16"
EMULATED = "cluster.emulate=true"


def taken(found: Found, *overrides: str) -> Config:
    """Return a configuration with the devices of the machine ``found`` filled in."""
    config = composed_config(*SUMMED, *overrides)
    return replace(config, cluster=assign_devices(config, lambda: found))


def test_nccl_is_used_if_each_worker_has_a_gpu() -> None:
    config = taken(TWO)
    assert config.cluster.collectives == "nccl"
    assert sums_text(config, TWO, in_one_process=False) == "NCCL sums, from GPU to GPU"


@pytest.mark.parametrize(
    ("found", "overrides", "why"),
    [
        (with_nccl(0), (), "workers share a GPU: cluster.gpus=[0, 0]"),
        (TWO, ("parallelism.workers=3",), "workers share a GPU: cluster.gpus=[0, 1, 0]"),
        (TWO, ("parallelism.workers=1",), "there is 1 worker"),
        (TWO, ("cluster.one_process=true",), "cluster.one_process=true keeps all workers in one process"),
        (TWO, (HIGH16,), f"{HIGH16} compresses tensors, and NCCL sends them uncompressed"),
        (TWO, (EMULATED, "cluster.latency_ms=1"), f"{EMULATED} emulates links, and NCCL uses the real ones"),
        (WITHOUT, (), "NCCL is not installed with CuPy; cluster.collectives=nccl uses the system's NCCL"),
        (TWO, ("cluster.collectives=none",), "cluster.collectives=none"),
    ],
)
def test_the_reason_for_not_using_nccl_is_reported(found: Found, overrides: tuple[str, ...], why: str) -> None:
    config = taken(found, *overrides)
    assert config.cluster.collectives == "none"
    text = sums_text(config, found, in_one_process=False)
    assert text == f"every worker receives all parts through host memory and sums them: {why}"
    assert sums_text(config, found, in_one_process=True).startswith(
        "every worker receives all parts from GPU to GPU and"
    )


@pytest.mark.parametrize(
    ("found", "overrides"),
    [(NO_DRIVER, ()), (TWO, ("cluster.device=cpu",)), (TWO, ("parallelism.combine=ring_all_reduce",))],
)
def test_no_collectives_are_chosen_if_gpus_sum_nothing(found: Found, overrides: tuple[str, ...]) -> None:
    assert taken(found, *overrides).cluster.collectives is None


def test_requested_nccl_is_accepted_or_refused() -> None:
    assert taken(WITHOUT, "cluster.collectives=nccl").cluster.collectives == "nccl"
    with pytest.raises(
        ConfigError,
        match=r"cluster\.collectives=nccl: expected two workers or more, each with a separate "
        r"GPU and process, but workers share a GPU: cluster\.gpus=\[0, 0\]; use cluster\.collectives=null",
    ):
        taken(with_nccl(0), "cluster.collectives=nccl")
    with pytest.raises(ConfigError, match=r"cluster\.collectives=nccl with cluster\.device=cpu: the run uses no GPU"):
        taken(TWO, "cluster.collectives=nccl", "cluster.device=cpu")
    with pytest.raises(ConfigError, match=r"cluster\.collectives='ring': expected one of none, nccl, or null"):
        taken(TWO, "cluster.collectives=ring")


def test_collectives_change_the_outcome_of_runs_on_gpus() -> None:
    config, other = taken(TWO), taken(TWO, "cluster.collectives=none")
    assert outcome_hash(config) != outcome_hash(other)
    assert differing_keys(to_plain(config), to_plain(other)) == ["cluster.collectives"]


def test_a_repeated_run_with_fewer_gpus_reports_that_its_collectives_differ() -> None:
    stored = taken(TWO)
    assert reassign_devices(stored, lambda: TWO) == (stored, "")
    here, other = reassign_devices(stored, lambda: with_nccl(0))
    assert (here.cluster.gpus, here.cluster.collectives) == ([0, 0], "none")
    assert other == "cluster.collectives was nccl in the run, and is none with the GPUs of this machine"
    here, _ = reassign_devices(stored, lambda: NO_DRIVER)
    assert here.cluster.collectives is None


def test_sums_by_the_workers_are_kept_when_the_run_is_repeated() -> None:
    """Sums by the workers are equal on every machine, but sums by NCCL can differ in the last bits."""
    stored = taken(with_nccl(2, 3), "cluster.collectives=none")
    here, other = reassign_devices(stored, lambda: TWO)
    assert (here.cluster.gpus, here.cluster.collectives, other) == ([0, 1], "none", "")


def test_a_run_continued_under_another_strategy_chooses_collectives_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.config.devices.discover", lambda: TWO)
    take = "runner.config.configuration.assign_devices"
    monkeypatch.setattr(take, lambda config, *rest: assign_devices(config, lambda: TWO, *rest[1:]))
    stored = fix_machine_values(composed_config(*SUMMED), 4)
    assert stored.cluster.collectives == "nccl"
    assert _continued(stored, ["parallelism.workers=1"]).cluster.collectives == "none"
    assert _continued(stored, ["cluster.device=cpu"]).cluster.collectives is None
    assert _continued(stored, []).cluster.collectives == "nccl"
