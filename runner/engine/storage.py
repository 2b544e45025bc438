"""Memory that outlives a step: the variables of a device, and the arena its plans compute in."""

from __future__ import annotations

import mmap
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from runner.engine.plan import Slot
from runner.errors import ResourceError, RunnerError
from runner.kernels.registry import allocate

HUGE_PAGE = 2 << 20


@dataclass
class _Variable:
    slot: Slot
    data: NDArray[np.uint8]
    assigned: bool = False


@dataclass
class VariableStore:
    """Values of the variables that live on one device, by node name. They outlast steps and plans.

    What has a value once always has one.
    """

    _variables: dict[str, _Variable] = field(default_factory=dict)

    def memory(self, name: str, slot: Slot) -> NDArray[np.uint8]:
        """The bytes of a variable, made the first time; raises RunnerError when they are there in another layout."""
        if name not in self._variables:
            self._variables[name] = _Variable(slot, _pages(slot.layout.nbytes, f"variable {name!r}"))
        found = self._variables[name]
        if found.slot != slot:
            raise RunnerError(f"variable {name!r} is stored as {found.slot}, but a plan takes it as {slot}")
        return found.data

    def require(self, names: frozenset[str]) -> None:
        """Raise RunnerError naming the first variable of ``names`` that was never assigned."""
        for name in sorted(names):
            if name not in self._variables or not self._variables[name].assigned:
                raise RunnerError(f"variable {name!r} has no value yet: run the 'init' or the 'restore' client first")

    def mark_assigned(self, names: frozenset[str]) -> None:
        """Note that variables have a value."""
        for name in names:
            self._variables[name].assigned = True


class Tenant(Protocol):
    """Who computes in an arena."""

    def let_go(self) -> None:
        """Drop everything that refers to the arena."""
        ...


class Arena:
    """Scratch memory shared by the plans of one device, which run one at a time.

    It grows to what the largest plan needs. Whoever holds memory of the smaller one has to let go of it, and binds
    again before its next step: ``generation`` tells.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._data = allocate(0)
        self._tenants: WeakSet[Tenant] = WeakSet()

    def at_least(self, nbytes: int, tenant: Tenant) -> NDArray[np.uint8]:
        """The arena, grown to ``nbytes`` where it is smaller. Raises ResourceError when there is no memory."""
        if self._data.nbytes < nbytes:
            # The old one goes first: both are never there together.
            for each in self._tenants:
                each.let_go()
            self._data = allocate(0)
            self._data = _pages(nbytes, "the arena of a step")
            self.generation += 1
        self._tenants.add(tenant)
        return self._data

    @property
    def nbytes(self) -> int:
        """Its present size."""
        return int(self._data.nbytes)


def _pages(nbytes: int, what: str) -> NDArray[np.uint8]:
    """Fresh zeroed memory; large pieces in huge pages, which spare the processor most address translations."""
    if nbytes < HUGE_PAGE:
        return allocate(nbytes)
    try:
        # Shared pages, which is what mmap makes by default, are hardly ever huge.
        pages: Any = mmap.mmap(-1, nbytes + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise ResourceError(f"{nbytes:,} bytes for {what} are not to be had: {error}") from None
    with suppress(OSError):  # It is a wish: a system without huge pages computes the same.
        pages.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(pages, np.uint8)
    start = -raw.ctypes.data % HUGE_PAGE
    return raw[start : start + nbytes]
