"""What the engine asks of a type of device: memory, moving values to and from it, and putting calls together.

The executor knows no array library: what it allocates, copies and calls goes through a :class:`Platform`. That of the
host works at once, in the memory of the process; that of a card puts work on a stream and waits only where a value is
wanted on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

if TYPE_CHECKING:
    from runner.kernels.registry import Bound, Operand

Array = NDArray[Any]


class Bytes(Protocol):
    """Memory of a device: an array of uint8 on the host, an address and a size on a card."""

    @property
    def nbytes(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Any: ...


class Stretch(Protocol):
    """Neighbouring calls that were put together."""

    def __call__(self) -> int:
        """Run them, or have them run; returns 0, or (1 + position of the call that failed) << 16 | its status."""
        ...

    def failed(self) -> int:
        """What :meth:`__call__` could not know yet; to be asked when the device has finished. Resets it."""
        ...


class Platform(Protocol):
    """One logical device: its memory, and the order in which it works.

    Everything that is called happens in the order of the calls, as seen by later calls. A device may be behind:
    ``finish`` waits until it is not.
    """

    def allocate(self, nbytes: int, what: str) -> Bytes:
        """Fresh memory, aligned to a cache line. Raises ResourceError naming ``what`` where there is none."""
        ...

    def write(self, target: Operand, value: Array) -> None:
        """Copy a plain array of the operand's spec into its memory. The array may change as soon as this returns."""
        ...

    def read(self, sources: Sequence[Operand]) -> list[Array]:
        """Wait for what was called, and return fresh copies of plain operands."""
        ...

    def copier(self, target: Bytes, source: Bytes) -> Bound:
        """A call that copies as many bytes as both have."""
        ...

    def join(self, calls: Sequence[Bound]) -> Stretch:
        """Make one of calls that :meth:`joinable` said yes to, in their order."""
        ...

    def joinable(self, call: Bound) -> bool:
        """Whether a call can be put together with others; a function of Python is run by itself."""
        ...

    def finish(self) -> None:
        """Wait until everything that was called has been done. Raises RunnerError where the device reports an error."""
        ...
