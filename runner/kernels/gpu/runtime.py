"""The functions of CUDA that GPU kernels and platforms use.

One object represents the GPUs of a process and is passed to its users. Nothing is global, so that tests can pass
another implementation that runs the same sources without a GPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Size = tuple[int, int, int]
Argument = np.generic
"""np.uintp for an address, np.int32, np.int64, np.float32 or np.float64: exactly the type that the kernel declares."""


@dataclass(frozen=True)
class DeviceMemory:
    """GPU memory. owner: the object that keeps it allocated."""

    address: int
    nbytes: int
    owner: object = field(repr=False, compare=False, default=None)

    def __getitem__(self, part: slice) -> "DeviceMemory":
        """Return a part without copying; raises ValueError for steps and for parts outside."""
        start, stop, step = part.indices(self.nbytes)
        asked = (part.start or 0, self.nbytes if part.stop is None else part.stop)
        if step != 1 or (start, stop) != asked or stop < start:
            raise ValueError(f"bytes {asked[0]}..{asked[1]} of {self.nbytes} bytes of a GPU")
        return DeviceMemory(self.address + start, stop - start, self.owner)


class Stream(Protocol):
    """Work in order. handle: the cudaStream_t as a number, for libraries."""

    @property
    def handle(self) -> int: ...


class Event(Protocol):
    """A point in a stream."""


class Graph(Protocol):
    """Captured work."""

    def launch(self, stream: Stream) -> None:
        """Enqueue all captured work as one launch."""
        ...


class Function(Protocol):
    """A compiled kernel."""

    def __call__(self, stream: Stream, grid: Size, block: Size, arguments: Sequence[Argument]) -> None:
        """Enqueue a launch."""
        ...


class Runtime(Protocol):
    """The GPUs of a process. Methods refer to the GPU that the thread uses.

    name: product name. capability: compute capability, 90 for 9.0. multiprocessors: number of streaming
    multiprocessors. These describe the default GPU; GPUs of one process are expected to be alike.
    """

    @property
    def name(self) -> str: ...

    @property
    def capability(self) -> int: ...

    @property
    def multiprocessors(self) -> int: ...

    def use(self, gpu: int) -> None:
        """Make this thread use a GPU. Raises RuntimeError if the process does not see this GPU."""
        ...

    def function(self, source: str, name: str) -> Function:
        """Return the kernel ``extern "C" __global__ void name(...)`` of a CUDA C++ source, which is compiled once."""
        ...

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Allocate GPU memory at a multiple of 256. Raises MemoryError if there is not enough."""
        ...

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocate pinned host memory, which the GPU copies asynchronously and kernels may write to."""
        ...

    def stream(self) -> Stream:
        """Create a stream that does not wait for the default stream."""
        ...

    def event(self) -> Event:
        """Create an event that is not recorded."""
        ...

    def record(self, event: Event, stream: Stream) -> None:
        """Record an event behind all work of the stream so far."""
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """Make later work of the stream wait for the event; the host does not wait."""
        ...

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        """Enqueue a copy between addresses of any GPU or of pinned memory."""
        ...

    def synchronize(self, stream: Stream) -> None:
        """Wait on the host until a stream is empty. Raises RuntimeError with the error of the GPU."""
        ...

    def wait_on_host(self, event: Event) -> None:
        """Wait on the host for an event."""
        ...

    def capture(self, stream: Stream, work: Callable[[], None]) -> Graph:
        """Capture, without running, what ``work`` enqueues on the stream and on streams that branch off and join it."""
        ...

    def free_bytes(self) -> tuple[int, int]:
        """Return free and total bytes."""
        ...

    def library(self, name: str) -> Any:
        """Return the object of a GPU library ("cublas", "cudnn", "nccl"), or None if it is not available."""
        ...
