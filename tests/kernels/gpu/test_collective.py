"""Sums over emulated GPUs: the calls to a fake NCCL, and its errors."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.kernels.contract import Buffers, Operand, plain
from runner.kernels.gpu import collective
from runner.kernels.gpu.platform import GpuPlatform
from runner.kernels.gpu.runtime import StreamCall
from runner.kernels.platform import Work
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.fake_nccl import joined, with_nccl
from tests.kernels.gpu.running import got, put, registry_of
from tests.kernels.harness import Shaped

Array = NDArray[Any]


@pytest.fixture
def gpus(compiled_sources: Path) -> EmulatedRuntime:
    """Return three emulated GPUs."""
    return EmulatedRuntime(compiled_sources, gpus=3)


def operand(runtime: EmulatedRuntime, array: Array) -> Operand:
    """Copy an array to the current GPU."""
    spec = Shaped.of(array)
    found = Operand(spec, plain(spec), runtime.allocate(spec.nbytes))
    put(runtime, runtime.stream(), found, array)
    return found


def bound(runtime: EmulatedRuntime, rank: int, size: int, part: Operand, total: Operand) -> StreamCall:
    """Return the call of a sum on the current GPU, bound to operands."""
    kernel = registry_of(runtime, collective).find("collective_sum", "gpu", "nccl")
    attributes = {"group": "g", "rank": rank, "size": size}
    arrangement = kernel.arrange(attributes, [part.spec], [total.spec], [part.layout])
    assert arrangement is not None
    assert arrangement.in_place == ((0, 0),)
    call = kernel.bind(attributes, arrangement, Buffers((part,), (total,), runtime.allocate(0)))
    assert isinstance(call, StreamCall)
    return call


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "int64"])
@pytest.mark.parametrize("in_place", [False, True])
def test_every_gpu_receives_the_sum(gpus: EmulatedRuntime, dtype: str, in_place: bool) -> None:
    joined(gpus, 3)
    arrays = [(np.arange(5) + 10 * k).astype(np.dtype(dtype)) for k in range(3)]
    placed = []
    for gpu, array in enumerate(arrays):
        gpus.use(gpu)
        part = operand(gpus, array)
        total = part if in_place else operand(gpus, np.zeros_like(array))
        stream = gpus.stream()
        bound(gpus, gpu, 3, part, total).enqueue(stream)
        placed.append((gpu, stream, total))
    for gpu, stream, total in reversed(placed):
        gpus.use(gpu)
        np.testing.assert_array_equal(got(gpus, stream, total), arrays[0] + arrays[1] + arrays[2], strict=True)


def test_an_empty_sum_is_not_enqueued(gpus: EmulatedRuntime) -> None:
    nccl = joined(gpus, 2)
    gpus.use(0)
    part = operand(gpus, np.zeros(0, np.float32))
    bound(gpus, 0, 2, part, part).enqueue(gpus.stream())
    assert nccl.log == []


def test_without_the_library_there_is_no_kernel(runtime: EmulatedRuntime) -> None:
    assert collective.kernels(runtime) == []


def test_sums_of_one_gpu_keep_their_order_and_are_not_captured(gpus: EmulatedRuntime) -> None:
    """Independent kernels of other ops would be captured on separate streams."""
    nccl = joined(gpus, 2)
    steps = []
    for gpu in range(2):
        gpus.use(gpu)
        parts = [operand(gpus, np.full(2 + n, 1.0 + gpu)) for n in range(4)]
        totals = [operand(gpus, np.zeros(2 + n)) for n in range(4)]
        calls = [bound(gpus, gpu, 2, *each) for each in zip(parts, totals, strict=True)]
        assert {call.turn for call in calls} == {calls[0].turn} != {None}, "sums count as writes to the same memory"
        assert not any(call.captured for call in calls)
        works = [
            Work(call, (part.data,), (total.data,)) for call, part, total in zip(calls, parts, totals, strict=True)
        ]
        steps.append((GpuPlatform(gpus, gpu), works, totals))
    joined_calls = []
    for platform, works, _ in steps:
        platform.enter()
        joined_calls.append(platform.join(works).call)
    for _ in range(3):
        for (platform, _, _), call in zip(steps, joined_calls, strict=True):
            platform.enter()
            call()
    for platform, _, totals in steps:
        platform.enter()
        assert [platform.snapshot(total.data).view(np.float64).tolist() for total in totals] == [
            [3.0] * (2 + n) for n in range(4)
        ]
    for gpu in range(2):
        assert [count for rank, count, _ in nccl.log if rank == gpu] == [2, 3, 4, 5] * 3
        assert len({stream for rank, _, stream in nccl.log if rank == gpu}) == 1, "their order is that of a stream"


def test_sums_and_joins_that_do_not_match_the_communicator_are_refused(gpus: EmulatedRuntime) -> None:
    joined(gpus, 2)
    part = operand(gpus, np.ones(2))
    for gpu, size, message in (
        (2, 2, "a sum over GPUs: GPU 2 has not joined a communicator"),
        (0, 3, "a sum as GPU 0 of 3: this GPU joined as 0 of 2"),
    ):
        gpus.use(gpu)
        with pytest.raises(RuntimeError, match=message):
            bound(gpus, 0, size, part, part)
    gpus.use(1)
    with pytest.raises(RuntimeError, match="GPU 1 cannot join 3 GPUs: it has already joined 2"):
        gpus.library("nccl").join(bytes(128), 0, 3)


def test_errors_of_the_library_name_gpu_and_rank(gpus: EmulatedRuntime) -> None:
    nccl = with_nccl(gpus)
    nccl.refuses = 2
    gpus.use(1)
    with pytest.raises(RuntimeError, match="GPU 1 cannot join 3 GPUs as number 2: ncclError 2"):
        gpus.library("nccl").join(bytes(128), 2, 3)
    with pytest.raises(RuntimeError, match="NCCL cannot set up a communicator: ncclError 2"):
        gpus.library("nccl").unique_id()


def test_a_background_failure_is_raised_before_the_next_sum_and_aborts_running_sums(gpus: EmulatedRuntime) -> None:
    """Without the abort, running sums and a synchronization would wait for other GPUs forever."""
    nccl = joined(gpus, 2)
    gpus.use(0)
    part = operand(gpus, np.ones(2, np.float32))
    call, nccl.background = bound(gpus, 0, 2, part, part), 6
    native = gpus.library("nccl").communicator().native
    assert not native.aborted
    with pytest.raises(RuntimeError, match="the sum of 2 float32 as GPU 0 of 2: ncclError 6"):
        call.enqueue(gpus.stream())
    assert native.aborted


def test_a_gpu_may_join_again_after_it_left(gpus: EmulatedRuntime) -> None:
    joined(gpus, 2)
    gpus.use(0)
    library = gpus.library("nccl")
    native = library.communicator().native
    library.leave()
    assert native.destroyed
    with pytest.raises(RuntimeError, match="has not joined a communicator"):
        library.communicator()
    library.join(bytes(127) + b"x", 0, 1)


@pytest.mark.parametrize(
    ("module", "found"),
    [(None, False), (SimpleNamespace(available=False), False), (SimpleNamespace(available=True), True)],
)
def test_the_library_is_available_if_cupy_finds_it(
    monkeypatch: pytest.MonkeyPatch, runtime: EmulatedRuntime, module: Any, found: bool
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "cupy.cuda", None if module is None else SimpleNamespace(nccl=module))
    assert (collective.open_library(lambda: 0, runtime.allocate) is not None) == found
