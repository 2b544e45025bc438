"""The interface to CUDA for GPU kernels and platforms, and the calls that enqueue work on a stream.

A :class:`Runtime` represents the GPUs of a process and is passed as an argument. Nothing is global, so that tests can
pass another implementation, which runs the same sources without a GPU.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.kernels.contract import FLOATS, Arrange, Attributes, Buffers, DeviceCall, Kernel, Operand

ALIGNMENT = 256
"""Alignment in bytes of GPU allocations and library workspaces."""

Size = tuple[int, int, int]
Argument = np.generic | Operand
"""A kernel argument: np.uintp for an address, or np.int32, np.int64, np.float32 or np.float64 as the kernel declares.

An operand is passed as its address.
"""


@dataclass(frozen=True)
class DeviceMemory:
    """GPU memory. owner: the object that keeps the memory allocated."""

    address: int
    nbytes: int
    owner: object = field(repr=False, compare=False, default=None)

    def __getitem__(self, part: slice) -> "DeviceMemory":
        """Return a part without copying; raises ValueError for a step and for a part outside the memory."""
        start, stop, step = part.indices(self.nbytes)
        begin, end = part.start or 0, self.nbytes if part.stop is None else part.stop
        if step != 1 or (start, stop) != (begin, end) or stop < start:
            raise ValueError(f"bytes {begin}..{end} of {self.nbytes} bytes of GPU memory, expected a range within them")
        return DeviceMemory(self.address + start, stop - start, self.owner)


class Stream(Protocol):
    """A queue of GPU work that runs in order. handle: the cudaStream_t as a number, for libraries."""

    @property
    def handle(self) -> int: ...


class Event(Protocol):
    """A point in the sequence of a stream's work."""


class CapturedGraph(Protocol):
    """A graph of captured work."""

    def launch(self, stream: Stream) -> None:
        """Enqueue all captured work as one launch."""


class Function(Protocol):
    """A compiled kernel."""

    def __call__(self, stream: Stream, grid: Size, block: Size, arguments: Sequence[np.generic]) -> None:
        """Enqueue a launch."""


class Runtime(Protocol):
    """The GPUs of a process. Methods refer to the GPU that the calling thread uses.

    name: product name. multiprocessors: number of streaming multiprocessors. Both describe the default GPU; the GPUs of
    one process are expected to be alike.
    """

    @property
    def name(self) -> str: ...

    @property
    def multiprocessors(self) -> int: ...

    def use(self, gpu: int) -> None:
        """Make this thread use a GPU. Raises RuntimeError if this GPU is not visible to the process."""

    def function(self, source: str, name: str) -> Function:
        """Return the kernel ``extern "C" __global__ void name(...)`` of a CUDA C++ source, which is compiled once."""

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Allocate GPU memory at an address divisible by 256. Raises MemoryError if there is not enough."""

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocate pinned host memory, for asynchronous copies and for kernels that write to host memory."""

    def stream(self) -> Stream:
        """Create a stream that does not wait for the default stream."""

    def event(self) -> Event:
        """Create an event that is not recorded yet."""

    def record(self, event: Event, stream: Stream) -> None:
        """Record an event after all work of the stream so far."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Make later work of the stream wait for the event; the host does not wait."""

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        """Enqueue a copy between addresses of any GPU or of pinned memory."""

    def synchronize(self, stream: Stream) -> None:
        """Wait on the host until a stream is empty. Raises RuntimeError if work on the GPU failed."""

    def wait_on_host(self, event: Event) -> None:
        """Wait on the host for an event."""

    def capture(self, stream: Stream, work: Callable[[], None]) -> CapturedGraph:
        """Capture, without running, the work that ``work`` enqueues on the stream and on streams that branch off."""

    def free_bytes(self) -> tuple[int, int]:
        """Return free and total bytes of the GPU."""

    def library(self, name: str) -> Any:
        """Return the object of a GPU library ("cublas", "cudnn", "nccl"), or None if it is not available."""


LIBRARY = "cuda"
THREADS = 256
"""The default number of threads per block."""


@dataclass(frozen=True)
class Failures:
    """The status word of a kernel that can fail for some values.

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
    """A call whose ``enqueue(stream)`` enqueues the work of a node without waiting and without allocating.

    The work is always the same, so that a graph can capture and replay it. keep: objects that must stay alive. turn:
    memory that counts as written in addition to the outputs; calls with the same ``turn`` keep their order. captured:
    whether the call may be part of a graph; if not, no call that is joined with it is captured.
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
    fixed = tuple(np.uintp(each.address) if isinstance(each, Operand) else each for each in arguments)

    def enqueue(stream: Stream) -> None:
        function(stream, grid, (threads, 1, 1), fixed)

    return StreamCall(enqueue, fixed, failures)


def in_order(calls: Sequence[StreamCall]) -> StreamCall:
    """Return one call that runs several calls in order.

    Raises ValueError if more than one call can fail, or if the calls have different turns.
    """

    def enqueue(stream: Stream) -> None:
        for call in calls:
            call.enqueue(stream)

    failing = [call.failures for call in calls if call.failures is not None]
    turns = {call.turn for call in calls if call.turn is not None}
    if len(failing) > 1 or len(turns) > 1:
        raise ValueError("at most one of the calls of a node may report failures, and all turns must be equal")
    failures, turn = next(iter(failing), None), next(iter(turns), None)
    return StreamCall(enqueue, tuple(calls), failures, turn, all(call.captured for call in calls))


Bind = Callable[[Runtime, Attributes, Buffers], StreamCall]


def own_kernels(runtime: Runtime, table: Mapping[str, tuple[Arrange, Bind]]) -> list[Kernel]:
    """Return the kernels of library "cuda". table: op -> (arrange, bind(runtime, attributes, buffers))."""

    def kernel(op: str, arrange: Arrange, bind: Bind) -> Kernel:
        return Kernel(op, "gpu", LIBRARY, 0, FLOATS, arrange, lambda given, _, buffers: bind(runtime, given, buffers))

    return [kernel(op, *functions) for op, functions in table.items()]


def aligned(nbytes: int) -> int:
    """Return ``nbytes`` rounded up to a multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def power_of_two(least: int) -> int:
    """Return the smallest power of two that is at least ``least``."""
    return 1 << max(0, least - 1).bit_length()


def blocks_for(runtime: Runtime, count: int, threads: int = THREADS) -> int:
    """Return the number of blocks for a grid-stride loop over ``count`` elements, at most as many as fill the GPU."""
    return max(1, min(-(-count // threads), 16 * runtime.multiprocessors))
