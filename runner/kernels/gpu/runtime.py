"""What the kernels and the memory of a GPU are built on: the few things that are asked of CUDA.

One object is the GPUs of a process. It is handed to whoever needs it; nothing here is global, so that tests can hand
over another implementation that executes the same sources without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Size = tuple[int, int, int]
Argument = np.generic
"""np.uintp for an address, np.int32, np.int64, np.float32 or np.float64: exactly what the kernel declares."""


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of a GPU. owner: what keeps them allocated."""

    address: int
    nbytes: int
    owner: object = field(repr=False, compare=False, default=None)

    def __getitem__(self, part: slice) -> DeviceMemory:
        """A part of it, without copying; raises ValueError for steps and for what lies outside."""
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
        """Put all of it on a stream, as one thing."""
        ...


class Function(Protocol):
    """A compiled kernel."""

    def __call__(self, stream: Stream, grid: Size, block: Size, arguments: Sequence[Argument]) -> None:
        """Put a launch on a stream."""
        ...


class Runtime(Protocol):
    """The GPUs of a process. What is asked of it concerns the GPU that the thread uses.

    name: as its maker calls it. capability: compute capability, 90 for 9.0. multiprocessors: streaming multiprocessors.
    These are of the first GPU; GPUs of one process are expected to be alike.
    """

    @property
    def name(self) -> str: ...

    @property
    def capability(self) -> int: ...

    @property
    def multiprocessors(self) -> int: ...

    def use(self, gpu: int) -> None:
        """From now on this thread uses the GPU of a number. Raises RuntimeError where there is none of it."""
        ...

    def function(self, source: str, name: str) -> Function:
        """The kernel ``extern "C" __global__ void name(...)`` of a CUDA C++ source, which is compiled once."""
        ...

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Memory of the GPU, at a multiple of 256. Raises MemoryError where there is none."""
        ...

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Memory of the host that the GPU copies from and to by itself, and that kernels may write, by its address."""
        ...

    def stream(self) -> Stream:
        """A stream that does not wait for the default one."""
        ...

    def event(self) -> Event:
        """An event that has not been recorded."""
        ...

    def record(self, event: Event, stream: Stream) -> None:
        """The event is what is on the stream so far."""
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """What comes on the stream later waits for the event; the host does not."""
        ...

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        """Put a copy between addresses of any GPU or pinned memory on a stream."""
        ...

    def synchronize(self, stream: Stream) -> None:
        """Wait on the host until a stream is empty. Raises RuntimeError with what the GPU says went wrong."""
        ...

    def wait_on_host(self, event: Event) -> None:
        """Wait on the host for an event."""
        ...

    def capture(self, stream: Stream, work: Callable[[], None]) -> Graph:
        """What ``work`` puts on the stream, and on others that wait for it and are waited for: captured, not done."""
        ...

    def free_bytes(self) -> tuple[int, int]:
        """Bytes that are free now, and bytes in all."""
        ...

    def library(self, name: str) -> Any:
        """The object of a library of the GPU ("cublas", "cudnn", "nccl") or None where it is not there."""
        ...
