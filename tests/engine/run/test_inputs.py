"""Reading of inputs: each share (range of examples) of a batch is read once for all devices of a process."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from runner.engine.compile.program import Client, Fields, InputSlot, ShareKey
from runner.engine.graph import Graph, Tensor, local_cluster, ops
from runner.engine.run.inputs import SharedReading
from runner.engine.run.kernel_table import load_kernels
from runner.errors import RunnerError
from runner.strategies import ModelParallel, Single
from tests.engine.running import GPU_0, cluster_of, session
from tests.gpu.gpus import registry_of
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.strategies.networks import BATCH, TEST_BATCH, Examples, workload_of
from tests.strategies.training import Placed, begun, first_gpu, trained

PATIENCE_S = 20.0

X, Y, PART = Tensor("x"), Tensor("y"), Tensor("part")
SLOTS = {
    "first": [InputSlot(X, "train", "x", 0, 4)],
    "second": [InputSlot(Y, "train", "y", 0, 4), InputSlot(PART, "train", "x", 1, 2)],
    "idle": [],
}


class Counting:
    """A source that records its calls and fails once, at ``failing_step``. examples: the data; None to generate it."""

    def __init__(self, failing_step: int = -1, examples: Examples | None = None) -> None:
        self.asked: list[ShareKey] = []
        self._failing_step = failing_step
        self._examples = examples

    def read(self, split: str, step: int, lo: int, hi: int) -> Fields:
        self.asked.append((split, step, lo, hi))
        if step == self._failing_step:
            self._failing_step = -1
            raise OSError("the disk is gone")
        if self._examples is not None:
            return self._examples.read(split, step, lo, hi)
        return {"x": np.arange(lo, hi) + 10.0 * step, "y": np.full(hi - lo, step)}


def test_a_field_that_the_source_lacks_is_named() -> None:
    shared = SharedReading(Counting(), {"first": [InputSlot(X, "train", "z", 0, 4)]})
    with pytest.raises(RunnerError, match=r"^input x:0 needs field 'z'; the source has x, y$"):
        shared.read("first", 3)


def test_share_of_two_devices_is_read_once() -> None:
    source = Counting()
    shared = SharedReading(source, SLOTS)
    first, second, idle = (shared.read(device, 3) for device in ("first", "second", "idle"))
    assert source.asked == [("train", 3, 0, 4), ("train", 3, 1, 2)]
    assert idle == {}
    assert first.keys() == {X}
    np.testing.assert_array_equal(first[X], [30.0, 31.0, 32.0, 33.0])
    assert second.keys() == {Y, PART}
    np.testing.assert_array_equal(second[Y], [3, 3, 3, 3])
    np.testing.assert_array_equal(second[PART], [31.0])
    assert not shared._shares, "nothing is kept after all devices have read"


def test_second_request_of_a_device_reads_again() -> None:
    """The same batch is requested again if its split has no other batch and is evaluated after every epoch."""
    source = Counting()
    shared = SharedReading(source, SLOTS)
    for _ in range(2):
        shared.read("first", 0)
        shared.read("first", 0)
        shared.read("second", 0)
    assert source.asked.count(("train", 0, 0, 4)) == 4
    assert not shared._shares


def test_share_that_no_device_requests_is_dropped_in_the_next_step() -> None:
    source = Counting()
    shared = SharedReading(source, SLOTS)
    shared.read("first", 3)
    assert len(shared._shares) == 1
    shared.read("idle", 4)
    shared.read("second", 4)
    assert [key[1] for key in shared._shares] == [4]
    np.testing.assert_array_equal(shared.read("first", 4)[X], [40.0, 41.0, 42.0, 43.0])


def test_parts_of_a_batch_are_separate_shares() -> None:
    source = Counting()
    slots = [InputSlot(X, "train", "x", 0, 2, parts=3)], [InputSlot(Y, "train", "y", 0, 2, parts=3)]
    shared = SharedReading(source, dict(zip(("first", "second"), slots, strict=True)))
    for step in (4, 5):
        for device in ("first", "second"):
            shared.read(device, step)
    assert source.asked == [("train", 1, 2, 4), ("train", 1, 4, 6)]


def test_failed_read_is_retried_by_the_next_device() -> None:
    source = Counting(failing_step=2)
    shared = SharedReading(source, SLOTS)
    with pytest.raises(OSError, match="the disk is gone"):
        shared.read("first", 2)
    np.testing.assert_array_equal(shared.read("second", 2)[Y], [2, 2, 2, 2])
    np.testing.assert_array_equal(shared.read("first", 2)[X], [20.0, 21.0, 22.0, 23.0])
    assert source.asked.count(("train", 2, 0, 4)) == 2


def test_missing_source_is_refused_only_if_a_share_is_needed() -> None:
    shared = SharedReading(None, SLOTS)
    assert shared.read("idle", 7) == {}
    with pytest.raises(RunnerError, match=r"step 7 reads 'train' examples 0\.\.4, but the session has no input source"):
        shared.read("first", 7)


class Slow(Counting):
    """A source that waits in each read until ``go_on`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def read(self, split: str, step: int, lo: int, hi: int) -> Fields:
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
        return super().read(split, step, lo, hi)


def test_device_waits_for_the_device_that_reads() -> None:
    source = Slow()
    shared = SharedReading(source, {device: [InputSlot(X, "train", "x", 0, 4)] for device in ("first", "second")})
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(shared.read, "first", 2)
        assert source.begun.wait(PATIENCE_S)
        second = pool.submit(shared.read, "second", 2)
        source.go_on.set()
    assert source.asked == [("train", 2, 0, 4)]
    assert first.result()[X] is second.result()[X]


@pytest.mark.parametrize("gpus", [False, True], ids=["CPUs", "GPUs"])
def test_layers_on_three_devices_read_every_batch_once(gpus: bool, compiled_sources: Path) -> None:
    """The first layer reads the images, the last layer the labels; a GPU reads the inputs of each step in advance."""
    registry = registry_of(EmulatedRuntime(compiled_sources)) if gpus else load_kernels()
    near = local_cluster(3, latency_s=1e-9, bytes_per_s=1e15, gpus=first_gpu(3, 0, gpus))
    layers, workload = Placed(ModelParallel(workers=3), near, registry=registry), workload_of("dense")
    source = Counting(examples=Examples(BATCH, workload.fields["x"].shape))
    with begun(layers, workload, registry=registry, gpus=gpus, source=source) as trainer:
        history = trainer.train(range(3))
        trainer.evaluate()
    np.testing.assert_allclose(history, trained(Single(), workload, 3)[1], rtol=1e-9)
    ahead = [("test", 1, 0, TEST_BATCH), ("train", 3, 0, BATCH)] if gpus else []
    asked = [("test", 0, 0, TEST_BATCH), *(("train", step, 0, BATCH) for step in range(3)), *ahead]
    assert sorted(source.asked) == sorted(asked)


class Shrinking:
    """A source whose step s lacks s examples."""

    def read(self, split: str, step: int, lo: int, hi: int) -> Fields:
        return {"x": np.ones(hi - lo - step, np.float32)}


def test_wrong_inputs_that_a_gpu_reads_in_advance_raise_in_their_own_step(compiled_sources: Path) -> None:
    graph = Graph()
    with graph.device(GPU_0):
        x = ops.placeholder(graph, (4,), "float32", name="x")
        client = Client("run", {"y": ops.neg(graph, x)}, inputs=(InputSlot(x, "train", "x", 0, 4),))
    registry, cluster = registry_of(EmulatedRuntime(compiled_sources)), cluster_of(GPU_0)
    with session(graph, registry, client, cluster=cluster, source=Shrinking()) as opened:
        assert opened.run("run", step=0)["y"].tolist() == [-1.0] * 4
        with pytest.raises(RunnerError, match=r"^feed x:0: got float32\[3\], expected float32\[4\]$"):
            opened.run("run", step=1)
