"""Sessions on emulated GPUs: results, all-reduce by a collective library, and GPU failures."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.engine.graph import ops
from runner.engine.graph.device import Gpus, local_cluster
from runner.engine.graph.graph import Graph
from runner.engine.run.local_session import LocalSession
from runner.engine.run.recording import COMPUTE, RECEIVE, SEND, WAIT
from runner.errors import NumericError, ResourceError, RunnerError
from runner.strategies.base import Strategy
from runner.strategies.hybrid import Hybrid
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from tests.engine.running import client, session
from tests.gpu.gpus import registry_of
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.fake_nccl import FakeNccl, joined, with_nccl
from tests.strategies.networks import BATCH, Examples, workload_of
from tests.strategies.training import Trainer, Weights, difference, expect_same_bits, trained


def trainer_on(
    runtime: Any,
    strategy: Strategy,
    network: str = "dense",
    *,
    collectives: str = "none",
    wrong: Callable[[str, int, int], Any] = lambda field, step, lo: 0,
    **options: Any,
) -> Trainer:
    """Return a trainer whose workers are initialized, each on a separate GPU.

    wrong: the errors that :class:`Spoiled` adds to the examples. options: keyword arguments of the session.
    """
    workload = workload_of(network)
    program = strategy.build(workload)
    cluster = local_cluster(program.workers, gpus=Gpus(tuple(range(program.workers))), collectives=collectives)
    source = Spoiled(Examples(BATCH, workload.fields["x"].shape), wrong)
    session = LocalSession(program, cluster, registry_of(runtime), source, **options)
    session.run("init")
    return Trainer(program, session, "float64")


@dataclass(frozen=True)
class Spoiled:
    """Examples with errors: ``wrong(field, step, lo)`` is added to each field; ``lo`` is the first example read."""

    examples: Examples
    wrong: Callable[[str, int, int], Any]

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, Any]:
        fields = self.examples.read(split, step, lo, hi)
        return {name: value + self.wrong(name, step, lo) for name, value in fields.items()}


def trained_on_gpus(
    strategy: SyncData, network: str, runtime: EmulatedRuntime, collectives: str = "nccl"
) -> tuple[Weights, list[Any], LocalSession]:
    """Train for four steps; return the weights, the history and the closed session."""
    trainer = trainer_on(runtime, strategy, network, collectives=collectives)
    try:
        history = trainer.train(range(4))
        return trainer.weights(), history, trainer.session
    finally:
        trainer.session.close()


def with_library(folder: Path, gpus: int) -> tuple[EmulatedRuntime, FakeNccl]:
    runtime = EmulatedRuntime(folder, gpus=gpus)
    return runtime, joined(runtime, gpus)


summing = partial(SyncData, combine="all_reduce")


@pytest.mark.parametrize(
    ("strategy", "network"),
    [
        (summing(workers=2, bucket_bytes=200), "dense"),
        pytest.param(summing(workers=4, bucket_bytes=200), "dropped_out", marks=pytest.mark.slow),
        pytest.param(summing(workers=3, statistics="pooled"), "batch_normalised", marks=pytest.mark.slow),
        (summing(workers=2, overlap=False), "convolutional"),
        pytest.param(Hybrid(workers=2, combine="all_reduce"), "convolutional", marks=pytest.mark.slow),
    ],
    ids=["two workers", "four workers", "pooled statistics", "no overlap", "hybrid"],
)
def test_sums_by_the_library_equal_sums_by_transfers(strategy: SyncData, network: str, compiled_sources: Path) -> None:
    workers = strategy.workers
    runtime, library = with_library(compiled_sources, workers)
    weights, history, session = trained_on_gpus(strategy, network, runtime)
    without_library = EmulatedRuntime(compiled_sources, gpus=workers)
    expected, reference, without = trained_on_gpus(strategy, network, without_library, "none")
    expect_same_bits(weights, expected)
    assert history == reference
    assert "nccl" in session.libraries()["gpu"]
    assert sum(session.sent_bytes()) < sum(without.sent_bytes())
    assert len({tuple(count for rank, count, _ in library.log if rank == r) for r in range(workers)}) == 1
    weights_of_one, _ = trained(Single(), workload_of(network), 4)
    assert difference(weights, weights_of_one) < 1e-10


def test_training_without_a_communicator_is_refused(compiled_sources: Path) -> None:
    runtime = EmulatedRuntime(compiled_sources, gpus=2)
    with_nccl(runtime)
    with pytest.raises((RunnerError, RuntimeError), match="has not joined a communicator"):
        trained_on_gpus(summing(workers=2), "dense", runtime)


def test_asynchronous_failure_of_the_library_names_node_and_step(compiled_sources: Path) -> None:
    runtime, library = with_library(compiled_sources, 2)
    library.background = 6
    expected = r"node 'reduce/.*' \(op 'collective_sum'\) on .* failed in step 0: .*ncclError 6"
    with pytest.raises(RunnerError, match=expected):
        trained_on_gpus(summing(workers=2), "dense", runtime)


def test_variable_keeps_its_value_when_a_non_finite_update_is_refused(compiled_sources: Path) -> None:
    graph = Graph()
    x = ops.placeholder(graph, (3,), "float32", name="x")
    w = ops.variable(graph, (3,), "float32", name="w")
    ops.assign(graph, w, ops.fill(graph, 1.0, (3,), "float32"), name="first")
    ops.assign(graph, w, ops.mul(graph, w, x, name="product"), name="update")
    clients = [client("init", targets=["first"]), client("read", [w]), client("run", targets=["update"], feeds=[x])]
    gpus, registry = local_cluster(1, gpus=Gpus((0,))), registry_of(EmulatedRuntime(compiled_sources))
    with session(graph, registry, *clients, cluster=gpus, check_finite=True) as opened:
        opened.run("init")
        with pytest.raises(NumericError, match="node 'product'"):
            opened.run("run", feeds={"x:0": np.array([2.0, np.inf, 2.0], np.float32)})
        assert opened.run("read")["w:0"].tolist() == [1.0, 1.0, 1.0]


def on_two_gpus(folder: Path, **options: Any) -> Trainer:
    return trainer_on(EmulatedRuntime(folder, gpus=2), SyncData(workers=2), **options)


def test_recording_does_not_change_results(compiled_sources: Path) -> None:
    """While a trace is recorded, every instruction is called separately and followed by a synchronization."""
    plain, timed = on_two_gpus(compiled_sources), on_two_gpus(compiled_sources)
    timed.session.start_trace(["train"])
    assert timed.train(range(3)) == plain.train(range(3))
    timeline = timed.session.stop_trace()
    assert timed.train(range(3, 5)) == plain.train(range(3, 5))
    noted = {(each.device, each.step, each.kind) for each in timeline.spans}
    for device in timed.session.plans("train"):
        assert {(device, step, kind) for step in range(3) for kind in (COMPUTE, SEND, WAIT, RECEIVE)} <= noted


def test_check_finite_names_the_first_node(compiled_sources: Path) -> None:
    def wrong(field: str, step: int, lo: int) -> float:
        return np.nan if (field, step) == ("x", 1) and lo else 0

    checked = on_two_gpus(compiled_sources, wrong=wrong, check_finite=True)
    assert checked.train([0]) == on_two_gpus(compiled_sources).train([0])
    first = (
        r"node 'replica_1/train/relu1/relu' \(op 'matmul_fused'\), output 0: 48 of 48 values are not finite in step 1"
    )
    with pytest.raises(NumericError, match=first):
        checked.train([1])


def test_label_out_of_range_is_reported_once(compiled_sources: Path) -> None:
    def wrong(field: str, step: int, lo: int) -> int:
        return 99 * ((field, step) == ("y", 1))

    trainer = trainer_on(EmulatedRuntime(compiled_sources), Single(), wrong=wrong)
    trainer.train([0])
    with pytest.raises(RunnerError, match="failed in step 1: IndexError"):
        trainer.train([1])
    trainer.train([2, 3])


def test_read_ahead_error_is_raised_in_its_own_step(compiled_sources: Path) -> None:
    def wrong(field: str, step: int, lo: int) -> int:
        if step == 2:
            raise OSError("the disk is gone")
        return 0

    trainer = trainer_on(EmulatedRuntime(compiled_sources), Single(), wrong=wrong)
    trainer.train([0, 1])
    with pytest.raises(OSError, match="the disk is gone"):
        trainer.train([2])


@pytest.mark.parametrize(
    ("free", "text"),
    [(0, "bytes free"), (8, r"step 0 on .*gpu:0: no memory left: GPU 0 .* has 8 of .* bytes free")],
    ids=["binding", "reading ahead"],
)
def test_full_gpu_is_reported_with_the_step(compiled_sources: Path, free: int, text: str) -> None:
    runtime = EmulatedRuntime(compiled_sources)
    trainer = trainer_on(runtime, Single())
    if free:
        trainer.session.plans("train")
    runtime._free = free
    with pytest.raises(ResourceError, match=text):
        trainer.train([0])


@dataclass
class Broken:
    """A runtime with one failing operation. fails: "synchronize", "capture" or "launch"; "" for none."""

    runtime: EmulatedRuntime
    fails: str = field(default="", init=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runtime, name)

    def synchronize(self, stream: Any) -> None:
        self._fail("synchronize")
        self.runtime.synchronize(stream)

    def capture(self, stream: Any, work: Callable[[], None]) -> Any:
        self._fail("capture")
        return self.runtime.capture(stream, work)

    def function(self, source: str, name: str) -> Callable[..., None]:
        function = self.runtime.function(source, name)

        def launch(*arguments: Any) -> None:
            self._fail("launch")
            function(*arguments)

        return launch

    def _fail(self, where: str) -> None:
        if self.fails == where:
            raise RuntimeError("cudaErrorIllegalAddress")


def test_gpu_fault_is_reported_at_synchronization_and_close(compiled_sources: Path) -> None:
    runtime = Broken(EmulatedRuntime(compiled_sources))
    trainer = trainer_on(runtime, Single())
    trainer.train([0])
    runtime.fails = "synchronize"
    with pytest.raises(RunnerError, match=r"step 1 on .*gpu:0: the device failed: cudaErrorIllegalAddress"):
        trainer.train([1])
    with pytest.raises(RunnerError, match=r"gpu:0: the device failed: cudaErrorIllegalAddress"):
        trainer.session.close()


@pytest.mark.parametrize(
    ("where", "step", "text"),
    [
        ("launch", 0, r"node '[^']+' \(op '[^']+'\) on .*gpu:0 failed in step 0: RuntimeError: cudaErrorIll"),
        ("launch", 1, r"node '[^']+' \(op '[^']+'\) on .*gpu:0 failed in step 1: RuntimeError: cudaErrorIll"),
        ("capture", 1, r"\d+ nodes fused into one call on .*gpu:0 failed in step 1: RuntimeError: cudaErrorIll"),
    ],
    ids=["launch", "launch in a capture", "capture"],
)
def test_rejected_gpu_work_is_reported_with_its_nodes(compiled_sources: Path, where: str, step: int, text: str) -> None:
    """The first step launches single kernels; the second is captured. After a temporary fault, training continues."""
    runtime = Broken(EmulatedRuntime(compiled_sources))
    trainer = trainer_on(runtime, Single())
    trainer.train(range(step))
    runtime.fails = where
    with pytest.raises(RunnerError, match=text):
        trainer.train([step])
    runtime.fails = ""
    trainer.train(range(step, step + 3))
    trainer.session.close()
