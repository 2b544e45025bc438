"""Calls of a GPU by themselves: what several of one node are together, and how wide a loop is launched."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.kernels.gpu.calls import StreamCall, blocks_for, failures, in_order
from runner.kernels.gpu.runtime import Stream
from tests.kernels.gpu.emulation import EmulatedRuntime


@pytest.fixture
def plain_gpu(tmp_path: Path) -> EmulatedRuntime:
    """It compiles nothing here."""
    return EmulatedRuntime(tmp_path)


def noting(log: list[tuple[str, int]], name: str, fails: object = None) -> StreamCall:
    def enqueue(stream: Stream) -> None:
        log.append((name, stream.handle))

    return StreamCall(enqueue, failures=fails)  # type: ignore[arg-type]


def test_calls_of_a_node_come_on_one_stream_in_their_order(plain_gpu: EmulatedRuntime) -> None:
    log: list[tuple[str, int]] = []
    stream = plain_gpu.stream()
    in_order([noting(log, "first"), noting(log, "second")]).enqueue(stream)
    assert log == [("first", stream.handle), ("second", stream.handle)]


def test_of_several_calls_the_one_that_can_fail_speaks_for_all(plain_gpu: EmulatedRuntime) -> None:
    word = failures(plain_gpu, str)
    assert in_order([noting([], "first"), noting([], "second", word)]).failures is word
    assert in_order([noting([], "first")]).failures is None


def test_two_that_can_fail_are_refused(plain_gpu: EmulatedRuntime) -> None:
    both = [noting([], name, failures(plain_gpu, str)) for name in ("first", "second")]
    with pytest.raises(ValueError, match="of the calls of one node at most one may have failures"):
        in_order(both)


@pytest.mark.parametrize(("count", "blocks"), [(0, 1), (1, 1), (256, 1), (257, 2), (8192, 32), (1 << 40, 32)])
def test_a_loop_has_the_blocks_it_needs_and_no_more_than_fill_the_gpu(
    plain_gpu: EmulatedRuntime, count: int, blocks: int
) -> None:
    assert plain_gpu.multiprocessors == 2
    assert blocks_for(plain_gpu, count) == blocks
