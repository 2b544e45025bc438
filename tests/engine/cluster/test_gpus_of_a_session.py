"""Sessions on several GPUs, and failures of GPUs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.engine.graph import ops
from runner.engine.graph.device import Gpus, local_cluster
from runner.engine.graph.graph import Graph
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.engine.run.recording import COMPUTE, RECEIVE, SEND, WAIT
from runner.errors import NumericError, ResourceError, RunnerError
from runner.kernels.gpu.loading import register_gpus
from runner.kernels.registry import Registry
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from tests.engine import running
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.strategies.networks import Examples
from tests.strategies.test_sync_data import BATCH, task_for
from tests.strategies.training import Trainer, difference, trained

Array = NDArray[Any]


def kernels(runtime: EmulatedRuntime) -> Registry:
    registry = load_kernels().copy()
    register_gpus(registry, runtime)
    return registry


def test_workers_on_two_gpus_exchange_gradients(compiled_sources: Path) -> None:
    runtime, task, strategy = EmulatedRuntime(compiled_sources, gpus=2), task_for("dense"), SyncData(workers=2)
    program = strategy.build(task)
    cluster = local_cluster(program.workers, gpus=Gpus((0, 1)))
    session = LocalSession(program, cluster, kernels(runtime), Examples(BATCH, task.example_shape, "float64"))
    trainer = Trainer(program, session, "float64")
    session.run("init")
    trainer.train(range(3))
    expected, _ = trained(Single(), task, load_kernels(), 3)
    assert difference(expected, trainer.weights()) < 1e-12
    session.close()


def test_variable_keeps_its_value_when_the_next_one_is_refused(compiled_sources: Path) -> None:
    graph = Graph()
    x = ops.placeholder(graph, (3,), "float32", name="x")
    w = ops.variable(graph, (3,), "float32", name="w")
    ops.assign(graph, w, ops.fill(graph, 1.0, (3,), "float32"), name="first")
    ops.assign(graph, w, ops.mul(graph, w, x, name="product"), name="update")
    clients = [
        running.client("init", targets=["first"]),
        running.client("read", [w]),
        running.client("run", targets=["update"], feeds=[x]),
    ]
    gpus, registry = local_cluster(1, gpus=Gpus((0,))), kernels(EmulatedRuntime(compiled_sources))
    with running.session(graph, registry, *clients, cluster=gpus, check_finite=True) as opened:
        opened.run("init")
        with pytest.raises(NumericError, match="node 'product'"):
            opened.run("run", feeds={"x:0": np.array([2.0, np.inf, 2.0], np.float32)})
        assert opened.run("read")["w:0"].tolist() == [1.0, 1.0, 1.0]


def on_two_gpus(folder: Path, **options: Any) -> Trainer:
    """Two workers on a GPU each, initialised. options: of the session."""
    task, strategy = task_for("dense"), SyncData(workers=2)
    program, registry = strategy.build(task), kernels(EmulatedRuntime(folder, gpus=2))
    source = options.pop("source", Examples(BATCH, task.example_shape, "float64"))
    session = LocalSession(program, local_cluster(2, gpus=Gpus((0, 1))), registry, source, **options)
    session.run("init")
    return Trainer(program, session, "float64")


def test_recording_does_not_change_results(compiled_sources: Path) -> None:
    """While a trace is recorded, every instruction is a separate, synchronized call."""
    plain, timed = on_two_gpus(compiled_sources), on_two_gpus(compiled_sources)
    timed.session.start_trace(["train"])
    assert timed.train(range(3)) == plain.train(range(3))
    timeline = timed.session.stop_trace()
    assert timed.train(range(3, 5)) == plain.train(range(3, 5))
    noted = {(each.device, each.step, each.kind) for each in timeline.spans}
    for device in timed.session.plans("train"):
        assert {(device, step, kind) for step in range(3) for kind in (COMPUTE, SEND, WAIT, RECEIVE)} <= noted


class NotANumber(Examples):
    """Examples with NaN in step 1 for the second of two workers."""

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, Array]:
        fields = super().read(split, step, lo, hi)
        return {**fields, "x": fields["x"] * (np.nan if step == 1 and lo else 1.0)}


def test_check_finite_names_the_first_node(compiled_sources: Path) -> None:
    task = task_for("dense")
    source = NotANumber(BATCH, task.example_shape, "float64")
    checked = on_two_gpus(compiled_sources, source=source, check_finite=True)
    assert checked.train([0]) == on_two_gpus(compiled_sources).train([0])
    first = (
        r"node 'replica_1/train/relu1/relu' \(op 'matmul_fused'\), output 0: 48 of 48 values are not finite in step 1"
    )
    with pytest.raises(NumericError, match=first):
        checked.train([1])


class Poisoned(Examples):
    """Labels that are out of range, or no examples at all, in some steps."""

    def __init__(self, *arguments: Any, wrong: int, missing: int) -> None:
        super().__init__(*arguments)
        self._wrong = wrong
        self._missing = missing

    def read(self, split: str, step: int, lo: int, hi: int) -> Mapping[str, Array]:
        if step == self._missing:
            raise OSError("the disk is gone")
        fields = super().read(split, step, lo, hi)
        return {**fields, "y": np.full_like(fields["y"], 99)} if step == self._wrong else fields


def opened(folder: Path, **poison: int) -> Trainer:
    task = task_for("dense")
    program = Single().build(task)
    source = Poisoned(BATCH, task.example_shape, "float64", **poison)
    cluster = local_cluster(1, gpus=Gpus((0,)))
    trainer = Trainer(program, LocalSession(program, cluster, kernels(EmulatedRuntime(folder)), source), "float64")
    trainer.session.run("init")
    return trainer


def test_refused_label_is_reported_once(compiled_sources: Path) -> None:
    trainer = opened(compiled_sources, wrong=1, missing=-1)
    trainer.train([0])
    with pytest.raises(RunnerError, match="failed in step 1: IndexError"):
        trainer.train([1])
    trainer.train([2, 3])


def test_read_ahead_error_is_raised_in_its_own_step(compiled_sources: Path) -> None:
    trainer = opened(compiled_sources, wrong=-1, missing=2)
    trainer.train([0, 1])
    with pytest.raises(OSError, match="the disk is gone"):
        trainer.train([2])


def test_full_gpu_is_reported_with_the_step(compiled_sources: Path) -> None:
    trainer = opened(compiled_sources, wrong=-1, missing=-1)
    runtime = trainer.session._stores["/job:worker/task:0/device:gpu:0"].platform._runtime  # type: ignore[attr-defined]
    runtime._free = 0
    with pytest.raises(ResourceError, match="bytes free"):
        trainer.train([0])


def test_full_gpu_during_read_ahead_is_reported_with_the_step(compiled_sources: Path) -> None:
    trainer = opened(compiled_sources, wrong=-1, missing=-1)
    trainer.session.plans("train")
    runtime = trainer.session._stores["/job:worker/task:0/device:gpu:0"].platform._runtime  # type: ignore[attr-defined]
    runtime._free = 8
    with pytest.raises(ResourceError, match=r"step 0 on .*gpu:0: no memory left: GPU 0 .* has 8 of .* bytes free"):
        trainer.train([0])


class Broken:
    """A runtime whose GPU fails when it synchronizes, captures or launches a kernel."""

    def __init__(self, runtime: EmulatedRuntime) -> None:
        self._runtime = runtime
        self.fails = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def synchronize(self, stream: Any) -> None:
        self._fail("synchronize")
        self._runtime.synchronize(stream)

    def capture(self, stream: Any, work: Callable[[], None]) -> Any:
        self._fail("capture")
        return self._runtime.capture(stream, work)

    def function(self, source: str, name: str) -> Callable[..., None]:
        function = self._runtime.function(source, name)

        def launch(*arguments: Any) -> None:
            self._fail("launch")
            function(*arguments)

        return launch

    def _fail(self, where: str) -> None:
        if self.fails == where:
            raise RuntimeError("cudaErrorIllegalAddress")


def broken(folder: Path) -> tuple[Broken, Trainer]:
    """A GPU that can fail, and an initialised trainer on it."""
    task, runtime = task_for("dense"), Broken(EmulatedRuntime(folder))
    program, source = Single().build(task), Examples(BATCH, task.example_shape, "float64")
    session = LocalSession(program, local_cluster(1, gpus=Gpus((0,))), kernels(runtime), source)  # type: ignore[arg-type]
    session.run("init")
    return runtime, Trainer(program, session, "float64")


def test_gpu_fault_is_reported_at_synchronization_and_close(compiled_sources: Path) -> None:
    runtime, trainer = broken(compiled_sources)
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
    ids=["launched", "launched_in_a_capture", "captured"],
)
def test_rejected_gpu_work_is_reported_with_its_nodes(compiled_sources: Path, where: str, step: int, text: str) -> None:
    """The first step runs call by call, the second is captured; after a temporary fault the session continues."""
    runtime, trainer = broken(compiled_sources)
    trainer.train(range(step))
    runtime.fails = where
    with pytest.raises(RunnerError, match=text):
        trainer.train([step])
    runtime.fails = ""
    trainer.train(range(step, step + 3))
    trainer.session.close()
