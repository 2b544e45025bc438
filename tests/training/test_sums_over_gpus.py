"""A run whose gradients NCCL sums: a process for each GPU; the log reports if NCCL cannot be used."""

import logging
from dataclasses import replace

import pytest

from runner.commands.explanation.devices import device_lines, plans_of
from runner.config.configuration import fix_machine_values
from runner.config.hydra_app import compose
from runner.engine.compile.program import Client
from runner.errors import ConfigError, ResourceError
from runner.kernels.gpu.discovery import Found
from runner.records.summary import Summary
from runner.training.build import build
from runner.training.comparison import _experiments, predicted_step_s
from runner.training.devices import cluster_of, log_run_devices
from runner.training.experiment import Experiment
from tests.config.test_collectives import SUMMED, TWO, WITHOUT
from tests.gpus import NO_DRIVER, gpu, gpu_kernels, machine, nccl_kernels

__all__ = ["gpu_kernels", "nccl_kernels"]

SMALL = ("model=mlp", "model.hidden=[8]", "train.steps=3")
DRAFT = Summary("0123", "failed", "", "", "sync_data", 2, {"python": "3"}, "", "")


def placed(found: Found, *overrides: str) -> Experiment:
    """The experiment of a small configuration whose gradients are summed by all_reduce."""
    return build(fix_machine_values(compose([*SUMMED, *SMALL, *overrides]).config(), 4, lambda: found))


@pytest.mark.usefixtures("nccl_kernels")
def test_nccl_has_a_process_for_each_gpu() -> None:
    experiment = placed(TWO)
    assert experiment.program.one_process is None
    assert experiment.cluster.collectives == "nccl"
    assert [device.gpu for device in experiment.cluster.devices] == [0, 1]


@pytest.mark.usefixtures("gpu_kernels")
def test_an_nccl_that_cannot_be_loaded_is_reported_before_planning() -> None:
    expected = r"^cluster\.collectives=nccl: the library is not available, expected with CuPy; see `runner doctor`"
    with pytest.raises(ResourceError, match=expected):
        placed(TWO)


@pytest.mark.usefixtures("gpu_kernels")
@pytest.mark.parametrize(
    "overrides",
    [("cluster.collectives=none",), ("parallelism.combine=ring_all_reduce",), ("cluster.one_process=true",)],
)
def test_without_it_copies_go_from_gpu_to_gpu(overrides: tuple[str, ...]) -> None:
    experiment = placed(TWO, *overrides)
    assert experiment.program.one_process is not None
    assert experiment.cluster.collectives == "none"


def test_a_strategy_that_sums_nothing_needs_no_nccl_and_overlapping_clients_cannot_have_it() -> None:
    experiment = placed(NO_DRIVER)
    taken = replace(experiment.config.cluster, device_taken="gpu", gpus=[0, 1], collectives="nccl")
    other = placed(NO_DRIVER, "parallelism.combine=sharded_reduce").program
    assert [cluster_of(taken, program).collectives for program in (experiment.program, other)] == ["nccl", "none"]
    deferred = {"push": Client("push", deferred=True)}
    program = replace(experiment.program, clients={**experiment.program.clients, **deferred})
    with pytest.raises(ConfigError, match=r"collectives=nccl with clients that overlap: all GPUs must start their"):
        cluster_of(taken, program)


@pytest.mark.usefixtures("nccl_kernels")
@pytest.mark.parametrize(
    ("found", "said"),
    [
        (TWO, "NCCL sums, from GPU to GPU"),
        (WITHOUT, "parts are sent from GPU to GPU and every worker sums them: NCCL is not installed with CuPy"),
        (machine(gpu(0)), "parts are sent from GPU to GPU and every worker sums them: some share a GPU"),
    ],
)
def test_log_and_explanation_name_the_library_that_sums(
    found: Found, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = placed(found)
    with caplog.at_level(logging.INFO, "runner.training.devices"):
        log_run_devices(experiment, found, DRAFT)
    assert any(each.startswith(f"combine=all_reduce: {said}") for each in caplog.messages)
    assert any(line.startswith("sums of all_reduce") and said in line for line in device_lines(experiment, found))


def test_on_the_cpu_collectives_cause_a_warning_only(caplog: pytest.LogCaptureFixture) -> None:
    experiment = placed(NO_DRIVER, "cluster.collectives=nccl")
    with caplog.at_level(logging.INFO, "runner.training.devices"):
        log_run_devices(experiment, NO_DRIVER, DRAFT)
    assert "cluster.collectives=nccl has no effect: no GPU is used" in caplog.messages
    assert not any(each.startswith("combine=all_reduce") for each in caplog.messages)
    assert not any("all_reduce" in line for line in device_lines(experiment, NO_DRIVER))


@pytest.mark.usefixtures("gpu_kernels")
def test_plans_of_gpus_without_the_library_have_their_sums_all_the_same() -> None:
    """The kernels of this test have no NCCL; a cluster that has none travels."""
    experiment = placed(TWO, "cluster.collectives=none")
    plans = plans_of(experiment).plans(experiment.program.clients["train"].signature)
    assert all("all_reduce" in {each.op for each in plan.instructions} for plan in plans.values())


@pytest.mark.usefixtures("gpu_kernels")
def test_strategies_that_are_compared_sum_as_they_do() -> None:
    model = ("parallelism=model", "parallelism.workers=2", "tracking=none", *SMALL, "cluster.collectives=nccl")
    experiment = build(fix_machine_values(compose([*model]).config(), 4, lambda: TWO))
    assert set(predicted_step_s(experiment)) >= {"single", "sync_data"}
    assert all(each.cluster.collectives == "none" for _, each in _experiments(experiment))
