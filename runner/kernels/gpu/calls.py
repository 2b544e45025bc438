"""Bound calls of a GPU: each only puts work on a stream, which does it later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from runner.kernels.contract import DeviceCall
from runner.kernels.gpu.runtime import Argument, DeviceMemory, Function, Runtime, Size, Stream

THREADS = 256
"""Of a block, where nothing asks for another number."""


@dataclass(frozen=True)
class Failures:
    """Where a kernel says that a value it read cannot be.

    word: a pinned int32 that the kernel sets, by its address, to a status that is not 0. explain: what it means.
    """

    word: NDArray[np.int32]
    explain: Callable[[int], str]

    @property
    def argument(self) -> np.uintp:
        """The address, for the kernel."""
        return np.uintp(self.word.ctypes.data)


@dataclass(frozen=True)
class StreamCall(DeviceCall):
    """``enqueue(stream)`` puts the work of a node on a stream, without waiting and without allocating.

    It always puts the same there, so that it can be captured in a graph and replayed. keep: what must stay alive. turn:
    memory that it counts as writing beside its outputs; calls with the same keep their order. captured: whether it may
    be part of a graph; where it may not, nor is what is called together with it.
    """

    enqueue: Callable[[Stream], None]
    keep: object = field(default=None, repr=False)
    failures: Failures | None = None
    turn: DeviceMemory | None = None
    captured: bool = True


def launch(
    function: Function,
    blocks: int | Size,
    arguments: Sequence[Argument],
    *,
    threads: int = THREADS,
    failures: Failures | None = None,
) -> StreamCall:
    """The call of one kernel: ``blocks`` blocks of ``threads`` threads with fixed arguments."""
    grid = (blocks, 1, 1) if isinstance(blocks, int) else blocks
    fixed = tuple(arguments)

    def enqueue(stream: Stream) -> None:
        function(stream, grid, (threads, 1, 1), fixed)

    return StreamCall(enqueue, fixed, failures)


def in_order(calls: Sequence[StreamCall]) -> StreamCall:
    """Several calls as one; at most one of them can fail."""

    def enqueue(stream: Stream) -> None:
        for call in calls:
            call.enqueue(stream)

    failing = [call.failures for call in calls if call.failures is not None]
    if len(failing) > 1:
        raise ValueError("of the calls of one node at most one may have failures")
    return StreamCall(enqueue, tuple(calls), failing[0] if failing else None)


def blocks_for(runtime: Runtime, count: int, threads: int = THREADS) -> int:
    """Blocks for a loop over ``count`` elements that strides by the grid: enough to fill the GPU, no more."""
    return max(1, min(-(-count // threads), 16 * runtime.multiprocessors))


def failures(runtime: Runtime, explain: Callable[[int], str]) -> Failures:
    """A fresh word for a kernel to fail with."""
    word = runtime.pinned(4).view(np.int32)
    word[0] = 0
    return Failures(word, explain)
