"""The platform of the host: memory of the process; calls are complete when they return."""

import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.kernels.contract import Bound, Join, NativeCall, Operand, native_calls, refuse_native_calls
from runner.kernels.memory import Bytes, allocate, on_host
from runner.kernels.platform import Joined, Work, Writer

Array = NDArray[Any]

HUGE_PAGE = 2 << 20


class HostPlatform:
    """See :class:`~runner.kernels.platform.Platform`. join: joins neighbouring machine-code calls."""

    def __init__(self, join: Join = refuse_native_calls) -> None:
        self._join = join

    is_asynchronous = False

    def enter(self) -> None:
        """Do nothing: every thread can use the host."""

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Return zeroed memory; large blocks use huge pages, which save address translations."""
        if nbytes < HUGE_PAGE:
            return allocate(nbytes)
        try:
            # mmap makes shared pages by default, which the kernel rarely backs by huge pages.
            pages: Any = mmap.mmap(-1, nbytes + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(str(error)) from None
        with suppress(OSError):  # Advice only: a system without huge pages computes the same.
            pages.madvise(mmap.MADV_HUGEPAGE)
        raw = np.frombuffer(pages, np.uint8)
        start = -raw.ctypes.data % HUGE_PAGE
        return raw[start : start + nbytes]

    def writer(self, target: Operand) -> Writer:
        """Return a writer that copies at once."""
        return _HostWriter(target.array)

    def reader(self, sources: Sequence[Operand]) -> Callable[[], list[Array]]:
        """Return a reader that copies at once."""
        arrays = [source.array for source in sources]
        return lambda: [array.copy() for array in arrays]

    def snapshot(self, data: Bytes) -> NDArray[np.uint8]:
        """Return the bytes themselves."""
        return on_host(data)

    def copier(self, target: Bytes, source: Bytes) -> Bound:
        """Return a Python function that copies."""
        destination, origin = on_host(target), on_host(source)
        return lambda: np.copyto(destination, origin)

    def joinable(self, call: Bound) -> bool:
        """Machine-code calls can be joined."""
        return not callable(call)

    def join(self, works: Sequence[Work], *, once: bool = False) -> Joined:
        """Join machine-code calls into one."""
        parts = [(owner, part) for owner, work in enumerate(works) for part in native_calls(work.call)]
        owners, calls = zip(*parts, strict=True)
        return Joined(self._join(calls), owners, lambda part, status: _reason(calls[part], status))

    def mark(self) -> object:
        """Return a mark; all calls are already complete."""
        return None

    def follow(self, mark: object) -> None:
        """Do nothing: all calls are complete."""

    def finish(self) -> None:
        """Do nothing: calls are complete when they return."""

    def synchronize(self) -> None:
        """Do nothing: calls are complete when they return."""


@dataclass(frozen=True)
class _HostWriter:
    memory: Array

    def __call__(self, value: Array) -> None:
        np.copyto(self.memory, value)

    def ahead(self, value: Array) -> None:
        """Whether calls may be incomplete when they return: no."""


def _reason(call: NativeCall, status: int) -> str:
    return call.explain(status) if call.explain else f"the library returned status {status}"
