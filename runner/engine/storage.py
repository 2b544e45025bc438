"""Memory that outlives a step: the variables of a device, and the arena its plans compute in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakSet

from runner.engine.plan import Slot
from runner.errors import ResourceError, RunnerError
from runner.kernels.host import HostPlatform
from runner.kernels.platform import Bytes, Platform


@dataclass
class _Variable:
    slot: Slot
    data: Bytes
    assigned: bool = False


@dataclass
class VariableStore:
    """Values of the variables that live on one device, by node name. They outlast steps and plans.

    What has a value once always has one.
    """

    platform: Platform = field(default_factory=HostPlatform)
    _variables: dict[str, _Variable] = field(default_factory=dict)

    def memory(self, name: str, slot: Slot) -> Bytes:
        """The bytes of a variable, made the first time; raises RunnerError when they are there in another layout."""
        if name not in self._variables:
            self._variables[name] = _Variable(slot, allocate(self.platform, slot.layout.nbytes, f"variable {name!r}"))
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

    def __init__(self, platform: Platform | None = None) -> None:
        self.generation = 0
        self._platform = platform or HostPlatform()
        self._data: Bytes = self._platform.allocate(0)
        self._tenants: WeakSet[Tenant] = WeakSet()

    def at_least(self, nbytes: int, tenant: Tenant) -> Bytes:
        """The arena, grown to ``nbytes`` where it is smaller. Raises ResourceError when there is no memory."""
        if self._data.nbytes < nbytes:
            # The old one goes first, when nobody computes in it any more: both are never there together.
            self._platform.settle()
            for each in self._tenants:
                each.let_go()
            self._data = self._platform.allocate(0)
            self._data = allocate(self._platform, nbytes, "the arena of a step")
            self.generation += 1
        self._tenants.add(tenant)
        return self._data

    @property
    def nbytes(self) -> int:
        """Its present size."""
        return int(self._data.nbytes)


def allocate(platform: Platform, nbytes: int, what: str) -> Bytes:
    """Memory of a device. Raises ResourceError naming ``what`` it was for when there is none."""
    try:
        return platform.allocate(nbytes)
    except MemoryError as error:
        raise ResourceError(f"{nbytes:,} bytes for {what} are not to be had: {error}") from None
