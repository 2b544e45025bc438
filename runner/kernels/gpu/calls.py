"""Bound calls of a GPU: each enqueues work on a stream."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from runner.kernels.contract import FLOATS, Arrange, Attributes, Buffers, DeviceCall, Kernel
from runner.kernels.gpu.runtime import Argument, DeviceMemory, Function, Runtime, Size, Stream

LIBRARY = "cuda"
THREADS = 256
"""The default number of threads per block."""


@dataclass(frozen=True)
class Failures:
    """The status word of a kernel that can refuse values.

    word: a pinned int32 that the kernel sets to a status other than 0. explain: returns the message for a status.
    """

    word: NDArray[np.int32]
    explain: Callable[[int], str]

    @property
    def argument(self) -> np.uintp:
        """The address as an argument of the kernel."""
        return np.uintp(self.word.ctypes.data)


@dataclass(frozen=True)
class StreamCall(DeviceCall):
    """``enqueue(stream)`` puts the work of a node on a stream, without waiting and without allocating.

    The work is always the same, so that it can be captured in a graph and replayed. keep: objects that must stay alive.
    turn: memory that counts as written besides the outputs; calls with the same memory keep their order. captured:
    whether the call may be part of a graph; if not, the calls joined with it are not captured either.
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
    """Return the call of one kernel: ``blocks`` blocks of ``threads`` threads with fixed arguments."""
    grid = (blocks, 1, 1) if isinstance(blocks, int) else blocks
    fixed = tuple(arguments)

    def enqueue(stream: Stream) -> None:
        function(stream, grid, (threads, 1, 1), fixed)

    return StreamCall(enqueue, fixed, failures)


def in_order(calls: Sequence[StreamCall]) -> StreamCall:
    """Return several calls as one; raises ValueError if more than one of them can fail."""

    def enqueue(stream: Stream) -> None:
        for call in calls:
            call.enqueue(stream)

    failing = [call.failures for call in calls if call.failures is not None]
    if len(failing) > 1:
        raise ValueError("at most one of the calls of a node may have failures")
    return StreamCall(enqueue, tuple(calls), failing[0] if failing else None)


Bind = Callable[[Runtime, Attributes, Buffers], StreamCall]


def own_kernels(runtime: Runtime, table: Mapping[str, tuple[Arrange, Bind]]) -> list[Kernel]:
    """Return the kernels of library "cuda" for a table: op -> its functions, without runtime and arrangement."""

    def kernel(op: str, arrange: Arrange, bind: Bind) -> Kernel:
        return Kernel(op, "gpu", LIBRARY, 0, FLOATS, arrange, lambda given, _, buffers: bind(runtime, given, buffers))

    return [kernel(op, *functions) for op, functions in table.items()]


def blocks_for(runtime: Runtime, count: int, threads: int = THREADS) -> int:
    """Return the number of blocks for a grid-stride loop over ``count`` elements: no more than fill the GPU."""
    return max(1, min(-(-count // threads), 16 * runtime.multiprocessors))


def failures(runtime: Runtime, explain: Callable[[int], str]) -> Failures:
    """Return a new status word."""
    word = runtime.pinned(4).view(np.int32)
    word[0] = 0
    return Failures(word, explain)
