"""Training with all-reduce by a collective library: bit-equal to training with transfers."""

from pathlib import Path
from typing import Any

import pytest

from runner.engine.graph.device import Gpus, local_cluster
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.errors import RunnerError
from runner.strategies.hybrid import Hybrid
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from tests.gpu.gpus import registry_of
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.fake_nccl import FakeNccl, joined, with_nccl
from tests.strategies.networks import Examples
from tests.strategies.test_sync_data import BATCH, task_for
from tests.strategies.training import Trainer, Weights, difference, expect_same_bits, trained

STEPS = 4


def trained_on_gpus(
    strategy: Any, network: str, runtime: EmulatedRuntime, collectives: str
) -> tuple[Weights, list[Any], LocalSession]:
    """Weights, history and the closed session of a run with one GPU per worker."""
    task = task_for(network)
    program = strategy.build(task)
    cluster = local_cluster(program.workers, gpus=Gpus(tuple(range(program.workers))), collectives=collectives)
    session = LocalSession(program, cluster, registry_of(runtime), Examples(BATCH, task.example_shape, "float64"))
    try:
        trainer = Trainer(program, session, "float64")
        session.run("init")
        history = trainer.train(range(STEPS))
        return trainer.weights(), history, session
    finally:
        session.close()


def with_library(folder: Path, gpus: int) -> tuple[EmulatedRuntime, FakeNccl]:
    runtime = EmulatedRuntime(folder, gpus=gpus)
    return runtime, joined(runtime, gpus)


@pytest.mark.parametrize(
    ("strategy", "network"),
    [
        (SyncData(workers=2, combine="all_reduce", bucket_bytes=200), "dense"),
        (SyncData(workers=4, combine="all_reduce", bucket_bytes=200), "dropped_out"),
        (SyncData(workers=3, combine="all_reduce", statistics="pooled"), "batch_normalised"),
        (SyncData(workers=2, combine="all_reduce", overlap=False), "convolutional"),
        (Hybrid(workers=2, combine="all_reduce"), "convolutional"),
    ],
    ids=["two", "four", "pooled", "held_back", "hybrid"],
)
def test_library_sums_are_bit_equal_to_transfers(strategy: Any, network: str, compiled_sources: Path) -> None:
    runtime, library = with_library(compiled_sources, strategy.workers)
    weights, history, session = trained_on_gpus(strategy, network, runtime, "nccl")
    expected, reference, without = trained_on_gpus(
        strategy, network, EmulatedRuntime(compiled_sources, gpus=strategy.workers), "none"
    )
    expect_same_bits(weights, expected)
    assert history == reference
    assert "nccl" in session.libraries()["gpu"]
    assert sum(session.sent_bytes()) < sum(without.sent_bytes())
    assert len({tuple(count for rank, count, _ in library.log if rank == r) for r in range(strategy.workers)}) == 1
    weights_of_one, _ = trained(Single(), task_for(network), load_kernels(), STEPS)
    assert difference(weights, weights_of_one) < 1e-10


def test_run_is_reproducible(compiled_sources: Path) -> None:
    strategy = SyncData(workers=3, combine="all_reduce", bucket_bytes=200)
    runs = [trained_on_gpus(strategy, "dense", with_library(compiled_sources, 3)[0], "nccl") for _ in range(2)]
    expect_same_bits(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


def test_training_without_a_communicator_is_refused(compiled_sources: Path) -> None:
    runtime = EmulatedRuntime(compiled_sources, gpus=2)
    with_nccl(runtime)
    with pytest.raises((RunnerError, RuntimeError), match="has not joined a communicator"):
        trained_on_gpus(SyncData(workers=2, combine="all_reduce"), "dense", runtime, "nccl")


def test_background_failure_names_node_and_step(compiled_sources: Path) -> None:
    runtime, library = with_library(compiled_sources, 2)
    library.background = 6
    with pytest.raises(
        RunnerError, match=r"node 'reduce/.*' \(op 'collective_sum'\) on .* failed in step 0: .*ncclError 6"
    ):
        trained_on_gpus(SyncData(workers=2, combine="all_reduce"), "dense", runtime, "nccl")
