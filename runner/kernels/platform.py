"""The interface of a device type (memory, copies to and from the device, joined calls), and the platform of the host.

The executor uses no array library: it allocates, copies and calls through a :class:`Platform`. The host platform runs
every call immediately. A GPU platform enqueues calls on a stream and waits only when the host needs a value.
"""

import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.kernels.contract import NOT_YET, Array, Bound, Join, NativeCall, Operand, native_calls, refuse_native_calls
from runner.kernels.memory import Bytes, allocate, on_host


class PartError(Exception):
    """One of several joined calls could not be started. part: index of the call; ``__cause__``: the original error."""

    def __init__(self, part: int) -> None:
        super().__init__(f"part {part}")
        self.part = part


class Writer(Protocol):
    """A function that copies host arrays to one location on a device."""

    def __call__(self, value: Array) -> None:
        """Copy a value for later calls. The array may change afterwards."""

    def ahead(self, value: Array) -> None:
        """Start to copy the next value while the device works. The array must not change until the writer is called."""


@dataclass(frozen=True)
class Work:
    """A bound call and the memory it reads and writes, scratch memory included."""

    call: Bound
    reads: tuple[Bytes, ...]
    writes: tuple[Bytes, ...]


@dataclass(frozen=True)
class JoinedCalls:
    """Several calls, the parts, that run as one.

    call: returns 0 or None, or (1 + index of the failed part) << 16 | status. Raises PartError if one of several parts
    could not be started. owners: for each part, the index of its work; if calls of several works were merged, the index
    of the first. reason: (part, status) -> message; called directly after the failure. late: called after
    :meth:`Platform.finish`; returns, and clears, the code of a failure that the device detected after ``call``
    returned. None if no part can fail late.
    """

    call: Callable[[], int | None]
    owners: tuple[int, ...]
    reason: Callable[[int, int], str]
    late: Callable[[], int] | None = None


class Platform(Protocol):
    """One logical device: its memory, and the order of its calls.

    Later calls see the effects of earlier calls. A device may run behind the host; ``finish`` waits for the device.
    """

    @property
    def is_asynchronous(self) -> bool:
        """Whether calls may be incomplete when they return."""

    def enter(self) -> None:
        """Make this the device of the calling thread."""

    def allocate(self, nbytes: int) -> Bytes:
        """Allocate memory aligned to a cache line. Raises MemoryError if there is not enough memory."""

    def writer(self, target: Operand) -> Writer:
        """Return a writer for an operand, which must be in C order."""

    def reader(self, sources: Sequence[Operand]) -> Callable[[], list[Array]]:
        """Return a function that waits for all calls and returns copies of ``sources``, which must be in C order."""

    def snapshot(self, data: Bytes) -> NDArray[np.uint8]:
        """Wait for all calls and return the bytes, for inspection."""

    def copier(self, target: Bytes, source: Bytes) -> Bound:
        """Return a call that copies all bytes of ``source`` to ``target``, which has the same size."""

    def joinable(self, call: Bound) -> bool:
        """Return whether a call can be joined with other calls; Python functions cannot."""

    def join(self, works: Sequence[Work], *, once: bool = False) -> JoinedCalls:
        """Join calls to run in order. once: do not merge calls, so that each can be timed or checked separately."""

    def mark(self) -> object:
        """Return a mark of the end of all calls so far; a platform of the same device type can :meth:`follow` it."""

    def follow(self, mark: object) -> None:
        """Make later calls wait for the calls that precede a mark, without blocking the host."""

    def finish(self) -> None:
        """Wait for all calls. Raises RuntimeError if the device failed."""

    def synchronize(self) -> None:
        """Wait for all calls and all copies by :meth:`Writer.ahead`, so that memory can be released."""


class CommunicatorLibrary(Protocol):
    """A library for collective operations on the devices of several processes."""

    def unique_id(self) -> bytes:
        """Return an id that all processes pass to :meth:`join`. Raises RuntimeError if the library fails."""

    def join(self, unique_id: bytes, rank: int, size: int) -> None:
        """Join the group with the calling thread's device as ``rank`` of ``size``; return when all devices have joined.

        Raises RuntimeError if the library fails.
        """

    def leave(self) -> None:
        """Leave the group. All processes must call this, after all collective work is complete."""


PlatformOf = Callable[[int], Platform]
"""Creates the platform of a logical device, given the number of its GPU."""


HUGE_PAGE = 2 << 20


class HostPlatform:
    """The platform of the host. join: joins machine-code calls into one function."""

    is_asynchronous = False

    def __init__(self, join: Join = refuse_native_calls) -> None:
        self._join = join

    def enter(self) -> None:
        """Do nothing: every thread can use the host."""

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Return zeroed memory; large blocks use huge pages, which cause fewer TLB misses."""
        if nbytes < HUGE_PAGE:
            return allocate(nbytes)
        try:
            # Without MAP_PRIVATE, mmap returns shared pages, for which Linux rarely uses huge pages.
            pages: Any = mmap.mmap(-1, nbytes + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(str(error)) from None
        with suppress(OSError):  # Huge pages are optional.
            pages.madvise(mmap.MADV_HUGEPAGE)
        raw = np.frombuffer(pages, np.uint8)
        start = -raw.ctypes.data % HUGE_PAGE
        return raw[start : start + nbytes]

    def writer(self, target: Operand) -> Writer:
        """Return a writer that copies immediately."""
        return _HostWriter(target.array)

    def reader(self, sources: Sequence[Operand]) -> Callable[[], list[Array]]:
        """Return a reader that copies immediately."""
        arrays = [source.array for source in sources]
        return lambda: [array.copy() for array in arrays]

    def snapshot(self, data: Bytes) -> NDArray[np.uint8]:
        """Return the memory itself, without a copy."""
        return on_host(data)

    def copier(self, target: Bytes, source: Bytes) -> Bound:
        """Return a Python function that copies."""
        destination, origin = on_host(target), on_host(source)
        return lambda: np.copyto(destination, origin)

    def joinable(self, call: Bound) -> bool:
        """Return whether the call is in machine code."""
        return not callable(call)

    def join(self, works: Sequence[Work], *, once: bool = False) -> JoinedCalls:
        """Join machine-code calls into one. Only calls that wait may precede a call that waits."""
        parts = [(owner, part) for owner, work in enumerate(works) for part in native_calls(work.call)]
        owners, calls = tuple(owner for owner, _ in parts), [call for _, call in parts]
        call = self._join(calls) if calls else lambda: 0
        if retries := [each.retry for each in calls if each.retry is not None]:
            call = _repeated(call, retries)
        return JoinedCalls(call, owners, lambda part, status: _reason(calls[part], status))

    def mark(self) -> object:
        """Return a mark; all calls are already complete."""
        return None

    def follow(self, mark: object) -> None:
        """Do nothing: all calls are complete."""

    def finish(self) -> None:
        """Do nothing: calls are complete when they return."""

    synchronize = finish


@dataclass(frozen=True)
class _HostWriter:
    memory: Array

    def __call__(self, value: Array) -> None:
        np.copyto(self.memory, value)

    def ahead(self, value: Array) -> None:
        """Do nothing: a value is copied when the writer is called."""


def _repeated(call: Callable[[], int], retries: Sequence[Callable[[], None]]) -> Callable[[], int]:
    """Return a function that repeats joined calls until none returns ``NOT_YET``. retries: one per waiting call."""

    def run() -> int:
        while (code := call()) and code & 0xFFFF == NOT_YET and code >> 16 <= len(retries):
            retries[(code >> 16) - 1]()
        return code

    return run


def _reason(call: NativeCall, status: int) -> str:
    return call.explain(status) if call.explain else f"the library returned status {status}"
