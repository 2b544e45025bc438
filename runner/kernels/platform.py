"""What the engine asks of a type of device: memory, moving values to and from it, and putting calls together.

The executor knows no array library: what it allocates, copies and calls goes through a :class:`Platform`. That of the
host works at once, in the memory of the process; that of a card puts work on a stream and waits only where a value is
wanted on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from runner.kernels.contract import Bound, Operand

Array = NDArray[Any]


class Bytes(Protocol):
    """Memory of a device: an array of uint8 on the host, an address and a size on a card."""

    @property
    def nbytes(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Any: ...


class PartError(Exception):
    """A part of joined calls could not be given to its device. part: its number; ``__cause__`` says why."""

    def __init__(self, part: int) -> None:
        super().__init__(f"part {part}")
        self.part = part


class DeviceCall:
    """A bound call that only the platform of its device knows how to run."""

    __slots__ = ()


class Writer(Protocol):
    """Copies arrays of the host into one place of a device."""

    def __call__(self, value: Array) -> None:
        """Have a value there for what is called next. The array may change afterwards."""
        ...

    def ahead(self, value: Array) -> None:
        """Begin to bring the value over that is given next, while the device works; the array must not change."""
        ...


@dataclass(frozen=True)
class Work:
    """A bound call and the memory it touches. writes: scratch memory too."""

    call: Bound
    reads: tuple[Bytes, ...]
    writes: tuple[Bytes, ...]


@dataclass(frozen=True)
class Joined:
    """Several calls as one.

    call: returns 0 or None, or (1 + number of the part that failed) << 16 | its status. owners: for each part the work
    it belongs to. reason: (part, status) -> why it failed, asked right afterwards. late: the same code for what failed
    on a device without the host waiting for it; asked after :meth:`Platform.finish`, None where that cannot be. It
    forgets what it tells. ``call`` raises PartError where one of several parts could not be begun.
    """

    call: Callable[[], int | None]
    owners: tuple[int, ...]
    reason: Callable[[int, int], str]
    late: Callable[[], int] | None = None


class Platform(Protocol):
    """One logical device: its memory, and the order in which it works.

    What is called happens in the order of the calls, as far as later calls can tell. A device may be behind the host:
    ``finish`` waits until it is not.
    """

    @property
    def is_asynchronous(self) -> bool:
        """Whether calls may be done later than they return."""
        ...

    def enter(self) -> None:
        """From now on this thread works with this device."""
        ...

    def allocate(self, nbytes: int) -> Bytes:
        """Fresh memory, aligned to a cache line. Raises MemoryError where there is none."""
        ...

    def writer(self, target: Operand) -> Writer:
        """What copies arrays of the operand's spec into its plain memory."""
        ...

    def reader(self, sources: Sequence[Operand]) -> Callable[[], list[Array]]:
        """What waits for all that was called, and returns fresh copies of plain operands."""
        ...

    def snapshot(self, data: Bytes) -> NDArray[np.uint8]:
        """The bytes as they are after all that was called, for looking at them."""
        ...

    def copier(self, target: Bytes, source: Bytes) -> Bound:
        """A call that copies as many bytes as both have."""
        ...

    def joinable(self, call: Bound) -> bool:
        """Whether a call can be put together with others; if not it is a function of Python, run by itself."""
        ...

    def join(self, works: Sequence[Work], *, once: bool = False) -> Joined:
        """Make one of joinable calls, run in their order. once: each is looked at, so that putting together is vain."""
        ...

    def mark(self) -> object:
        """All that was called so far, for :meth:`follow` of a platform of the same kind."""
        ...

    def follow(self, mark: object) -> None:
        """What is called later waits for a mark; the host does not."""
        ...

    def finish(self) -> None:
        """Wait until everything that was called has been done. Raises RuntimeError where the device has failed."""
        ...

    def settle(self) -> None:
        """Wait for that and for what was brought ahead: nothing touches memory that may now be let go."""
        ...
