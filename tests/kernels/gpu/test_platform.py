"""The GPU platform, tested on an emulated GPU that runs work only at synchronization."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.engine.graph import TensorSpec
from runner.kernels.contract import Operand, plain
from runner.kernels.gpu.platform import GpuPlatform
from runner.kernels.gpu.runtime import DeviceMemory, Runtime, StreamCall, launch
from runner.kernels.memory import Bytes, address_of
from runner.kernels.platform import PartError, Work
from tests.gpu.gpus import Counted
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import failures

SOURCE = """
extern "C" __global__ void axpy(const float *x, float *y, float factor, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] += factor * x[i];
}

extern "C" __global__ void refuse(const float *x, int *word) {
    if (threadIdx.x == 0 && x[0] < 0) word[0] = 7;
}
"""
COUNT = 100
SPEC = TensorSpec((COUNT,), "float32")


@pytest.fixture
def platform(runtime: EmulatedRuntime) -> GpuPlatform:
    return GpuPlatform(runtime, 0)


def operand(platform: GpuPlatform, value: NDArray[np.float32] | float | None = None) -> Operand:
    """Return an operand in GPU memory. value: its initial value."""
    place = Operand(SPEC, plain(SPEC), platform.allocate(SPEC.nbytes))
    if value is not None:
        platform.writer(place)(np.broadcast_to(np.float32(value), COUNT))
        platform.synchronize()
    return place


def read(platform: GpuPlatform, *places: Operand) -> list[NDArray[np.float32]]:
    return platform.reader(places)()


def values(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(COUNT, np.float32)


def axpy(runtime: Runtime, x: Operand, y: Operand, factor: float) -> Work:
    function = runtime.function(SOURCE, "axpy")
    arguments = (np.uintp(x.address), np.uintp(y.address), np.float32(factor), np.int32(COUNT))
    return Work(launch(function, 1, arguments), (x.data, y.data), (y.data,))


def test_an_array_may_change_right_after_it_is_written(platform: GpuPlatform) -> None:
    place, array = operand(platform), values(1)
    write = platform.writer(place)
    for step in range(5):
        array[:] = step
        write(array)
        array[:] = -1.0
        assert (read(platform, place)[0] == step).all()


def test_values_are_copied_ahead_of_their_step(runtime: EmulatedRuntime, platform: GpuPlatform) -> None:
    x, y = operand(platform), operand(platform, 0.0)
    write, add = platform.writer(x), platform.join([axpy(runtime, x, y, 1.0)])
    total = np.zeros(COUNT, np.float32)
    given = [values(step) for step in range(6)]
    for step, value in enumerate(given):
        write(value)
        add.call()
        if step + 1 < len(given):
            write.ahead(given[step + 1])
        total = total + value
    np.testing.assert_array_equal(read(platform, y), [total])


def test_a_value_copied_ahead_can_be_replaced(platform: GpuPlatform) -> None:
    place = operand(platform)
    write = platform.writer(place)
    write.ahead(values(1))
    write(values(2))
    np.testing.assert_array_equal(read(platform, place), [values(2)])


def test_joined_calls_run_eagerly_once_and_are_then_captured_and_replayed(runtime: EmulatedRuntime) -> None:
    counting = Counted(runtime)
    platform = GpuPlatform(counting, 0)
    x, y = operand(platform, values(1)), operand(platform, 0.0)
    joined = platform.join([axpy(counting, x, y, 1.0), axpy(counting, y, x, 0.5)])
    expected_x, expected_y = values(1), np.zeros(COUNT, np.float32)
    for step in range(4):
        assert joined.call() == 0
        expected_y = expected_y + expected_x
        expected_x = expected_x + np.float32(0.5) * expected_y
        np.testing.assert_array_equal(read(platform, x, y), [expected_x, expected_y])
        assert counting.calls["capture"] == (step > 0)


def test_branches_are_captured_together(runtime: EmulatedRuntime, platform: GpuPlatform) -> None:
    start, left, right, end = (operand(platform, 1.0) for _ in range(4))
    pairs = [(start, left, 2.0), (start, right, 3.0), (left, end, 1.0), (right, end, 1.0)]
    joined = platform.join([axpy(runtime, *each) for each in pairs])
    for total in (1 + 3 + 4, 8 + 5 + 7):
        joined.call()
        assert (read(platform, end)[0] == total).all()


@pytest.mark.parametrize("failing_turn", [0, 1], ids=["eagerly", "captured"])
def test_the_error_names_the_failed_call_and_later_steps_succeed(
    runtime: EmulatedRuntime, platform: GpuPlatform, failing_turn: int
) -> None:
    x, y = operand(platform, 1.0), operand(platform, 1.0)
    turns = iter(range(3))

    def enqueue(stream: Any) -> None:
        if next(turns) == failing_turn:
            raise OSError("status 13")

    joined = platform.join([axpy(runtime, x, y, 1.0), Work(StreamCall(enqueue), (y.data,), (x.data,))])
    for turn in range(4):
        if turn == failing_turn:
            with pytest.raises(PartError) as caught:
                joined.call()
            assert caught.value.part == 1
            assert str(caught.value.__cause__) == "status 13"
        else:
            assert joined.call() == 0
    # In the failing step, the call before the failing one ran if the step was eager, but not if it was captured.
    assert (read(platform, y)[0] == 1 + 4 - failing_turn).all()


def test_calls_other_than_work_on_a_stream_are_refused(platform: GpuPlatform) -> None:
    assert not platform.joinable(lambda: None)
    with pytest.raises(TypeError, match="function is not work on a stream"):
        platform.join([Work(lambda: None, (), ())])


def test_a_copy_can_be_joined_like_other_calls(platform: GpuPlatform) -> None:
    source, target = operand(platform, values(3)), operand(platform)
    call = platform.copier(target.data, source.data)
    assert platform.joinable(call)
    platform.join([Work(call, (source.data,), (target.data,))], once=True).call()
    np.testing.assert_array_equal(read(platform, target), [values(3)])
    np.testing.assert_array_equal(platform.snapshot(target.data).view(np.float32), values(3))


def test_the_refusal_of_a_kernel_is_reported_after_the_step(runtime: EmulatedRuntime, platform: GpuPlatform) -> None:
    x = operand(platform)
    write = platform.writer(x)
    fails = failures(runtime, lambda status: f"status {status} means negative")
    function = runtime.function(SOURCE, "refuse")
    refusing = launch(function, 1, (np.uintp(x.address), fails.argument), failures=fails)
    good = axpy(runtime, x, operand(platform), 0.0)
    joined = platform.join([good, Work(refusing, (x.data,), ())])
    write(-np.ones(COUNT, np.float32))
    assert joined.call() == 0, "the host has not waited yet"
    platform.finish()
    assert joined.late is not None
    assert joined.late() == (1 + 1) << 16 | 7
    assert joined.reason(1, 7) == "status 7 means negative"
    assert joined.late() == 0, "a failure is reported once"
    write(np.ones(COUNT, np.float32))
    joined.call()
    platform.finish()
    assert joined.late() == 0


def test_an_allocation_that_does_not_fit_reports_the_free_bytes(runtime: EmulatedRuntime) -> None:
    platform = GpuPlatform(EmulatedRuntime(runtime.folder, nbytes=1000), 0)
    platform.allocate(600)
    with pytest.raises(MemoryError, match=r"GPU 0 \(emulated GPU\) has 400 of 1,000 bytes free: 600 bytes"):
        platform.allocate(600)


def test_memory_of_closed_sessions_is_freed_for_the_next(runtime: EmulatedRuntime) -> None:
    class Session:
        def __init__(self) -> None:
            self.itself = self  # a cycle, which only the garbage collector frees

    class FullRuntime(EmulatedRuntime):
        def allocate(self, nbytes: int) -> DeviceMemory:
            if nbytes and ended() is not None:
                raise MemoryError
            return super().allocate(nbytes)

    gc.disable()
    try:
        ended = weakref.ref(Session())
        platform = GpuPlatform(FullRuntime(runtime.folder), 0)
        assert platform.allocate(600).nbytes == 600
    finally:
        gc.enable()


def test_memory_of_the_host_is_refused(platform: GpuPlatform) -> None:
    with pytest.raises(TypeError, match="expected GPU memory, got host memory: ndarray"):
        platform.copier(platform.allocate(4), np.zeros(4, np.uint8))


def test_a_device_waits_for_another(runtime: EmulatedRuntime) -> None:
    first, second = GpuPlatform(runtime, 0), GpuPlatform(runtime, 0)
    x, y = operand(first), operand(second)
    write = first.writer(x)
    write(values(5))
    mark = first.mark()
    second.follow(mark)
    second.join([Work(second.copier(y.data, x.data), (x.data,), (y.data,))], once=True).call()
    np.testing.assert_array_equal(read(second, y), [values(5)])


def test_memory_can_be_sliced_within_its_bounds(platform: GpuPlatform) -> None:
    memory = platform.allocate(100)
    part: Bytes = memory[20:60]
    assert (address_of(part), part.nbytes) == (address_of(memory) + 20, 40)
    assert memory[:10].nbytes == 10
    for wrong in (slice(0, 101), slice(60, 20), slice(0, 10, 2), slice(-5, None)):
        with pytest.raises(ValueError, match="of 100 bytes of GPU memory"):
            memory[wrong]
