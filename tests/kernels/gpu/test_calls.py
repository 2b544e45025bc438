"""Calls of GPU kernels: several calls of one node, blocks of a loop, and the functions that all sources share."""

from pathlib import Path

import numpy as np
import pytest

from runner.kernels.gpu.runtime import Stream, StreamCall, blocks_for, failures, in_order, launch
from runner.kernels.gpu.source import with_common
from tests.kernels.gpu.emulation import EmulatedRuntime


@pytest.fixture
def plain_gpu(tmp_path: Path) -> EmulatedRuntime:
    """An emulated GPU that compiles nothing."""
    return EmulatedRuntime(tmp_path)


def noting(log: list[tuple[str, int]], name: str, fails: object = None) -> StreamCall:
    def enqueue(stream: Stream) -> None:
        log.append((name, stream.handle))

    return StreamCall(enqueue, failures=fails)  # type: ignore[arg-type]


def test_calls_of_a_node_are_enqueued_on_one_stream_in_order(plain_gpu: EmulatedRuntime) -> None:
    log: list[tuple[str, int]] = []
    stream = plain_gpu.stream()
    in_order([noting(log, "first"), noting(log, "second")]).enqueue(stream)
    assert log == [("first", stream.handle), ("second", stream.handle)]


def test_several_calls_report_the_failures_of_the_one_that_can_fail(plain_gpu: EmulatedRuntime) -> None:
    word = failures(plain_gpu, str)
    assert in_order([noting([], "first"), noting([], "second", word)]).failures is word
    assert in_order([noting([], "first")]).failures is None


def test_two_calls_that_can_fail_are_refused(plain_gpu: EmulatedRuntime) -> None:
    both = [noting([], name, failures(plain_gpu, str)) for name in ("first", "second")]
    with pytest.raises(ValueError, match="at most one of the calls of a node may have failures"):
        in_order(both)


@pytest.mark.parametrize(("count", "blocks"), [(0, 1), (1, 1), (256, 1), (257, 2), (8192, 32), (1 << 40, 32)])
def test_a_loop_has_no_more_blocks_than_fill_the_gpu(plain_gpu: EmulatedRuntime, count: int, blocks: int) -> None:
    assert plain_gpu.multiprocessors == 2
    assert blocks_for(plain_gpu, count) == blocks


DIVIDE = """
extern "C" __global__ void divide(const int64 *a, const int64 *b, int64 *y, int64 count) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) y[i] = quotient(a[i], b[i]);
}
"""


def test_32_and_64_bit_quotients(runtime: EmulatedRuntime) -> None:
    a = np.array([7, 2**32 - 1, 2**32, 2**40 + 5, 5, 2**62], "int64")
    b = np.array([2, 3, 3, 2**33, 2**35, 7], "int64")
    y, stream = np.zeros_like(a), runtime.stream()
    fixed = [*(np.uintp(each.ctypes.data) for each in (a, b, y)), np.int64(len(a))]
    launch(runtime.function(with_common(DIVIDE), "divide"), 1, fixed).enqueue(stream)
    runtime.synchronize(stream)
    np.testing.assert_array_equal(y, a // b)
