"""The platform of the host: memory of the process, and calls that are done when they return."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.kernels.contract import Bound, Join, NativeCall, Operand, native_calls, refuse_native_calls
from runner.kernels.memory import allocate, on_host
from runner.kernels.platform import Bytes, Joined, Work, Writer

Array = NDArray[Any]

HUGE_PAGE = 2 << 20


class HostPlatform:
    """See :class:`~runner.kernels.platform.Platform`. join: makes one of neighbouring calls of machine code."""

    def __init__(self, join: Join = refuse_native_calls) -> None:
        self._join = join

    is_asynchronous = False

    def enter(self) -> None:
        """The host is where every thread works."""

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Zeroed memory; large pieces in huge pages, which spare the processor most address translations."""
        if nbytes < HUGE_PAGE:
            return allocate(nbytes)
        try:
            # Shared pages, which is what mmap makes by default, are hardly ever huge.
            pages: Any = mmap.mmap(-1, nbytes + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(str(error)) from None
        with suppress(OSError):  # It is a wish: a system without huge pages computes the same.
            pages.madvise(mmap.MADV_HUGEPAGE)
        raw = np.frombuffer(pages, np.uint8)
        start = -raw.ctypes.data % HUGE_PAGE
        return raw[start : start + nbytes]

    def writer(self, target: Operand) -> Writer:
        """A copy at once."""
        return _HostWriter(target.array)

    def reader(self, sources: Sequence[Operand]) -> Callable[[], list[Array]]:
        """Copies at once."""
        arrays = [source.array for source in sources]
        return lambda: [array.copy() for array in arrays]

    def snapshot(self, data: Bytes) -> NDArray[np.uint8]:
        """The bytes themselves."""
        return on_host(data)

    def copier(self, target: Bytes, source: Bytes) -> Bound:
        """A function of Python."""
        destination, origin = on_host(target), on_host(source)
        return lambda: np.copyto(destination, origin)

    def joinable(self, call: Bound) -> bool:
        """Calls of machine code are."""
        return not callable(call)

    def join(self, works: Sequence[Work], *, once: bool = False) -> Joined:
        """One call of machine code of many."""
        parts = [(owner, part) for owner, work in enumerate(works) for part in native_calls(work.call)]
        owners, calls = zip(*parts, strict=True)
        return Joined(self._join(calls), owners, lambda part, status: _reason(calls[part], status))

    def mark(self) -> object:
        """All that was called has been done."""
        return None

    def follow(self, mark: object) -> None:
        """There is nothing to wait for."""

    def finish(self) -> None:
        """Calls are done when they return."""

    def settle(self) -> None:
        """Calls are done when they return."""


@dataclass(frozen=True)
class _HostWriter:
    memory: Array

    def __call__(self, value: Array) -> None:
        np.copyto(self.memory, value)

    def ahead(self, value: Array) -> None:
        """Nothing works meanwhile."""


def _reason(call: NativeCall, status: int) -> str:
    return call.explain(status) if call.explain else f"its library returned status {status}"
