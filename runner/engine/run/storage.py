"""Memory that outlives a step: the variables of a device, and the arena in which its plans compute."""

from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakSet

from runner.engine.compile.plan import Slot
from runner.errors import ResourceError, RunnerError
from runner.kernels.memory import Bytes
from runner.kernels.platform import HostPlatform, Platform


@dataclass
class _Variable:
    slot: Slot
    data: Bytes
    assigned: bool = False


@dataclass
class VariableStore:
    """The variables of one device by node name, which outlive steps and plans. An assigned variable stays assigned."""

    platform: Platform = field(default_factory=HostPlatform)
    _variables: dict[str, _Variable] = field(default_factory=dict)

    def memory(self, name: str, slot: Slot) -> Bytes:
        """Return a variable's memory, allocated on first use; raises RunnerError if spec or layout changes."""
        if name not in self._variables:
            self._variables[name] = _Variable(slot, allocate(self.platform, slot.layout.nbytes, f"variable {name!r}"))
        found = self._variables[name]
        if found.slot != slot:
            raise RunnerError(f"variable {name!r} is stored as {found.slot}, but a plan requires {slot}")
        return found.data

    def require(self, names: frozenset[str]) -> None:
        """Raise RunnerError naming the first variable of ``names`` that was never assigned."""
        for name in sorted(names):
            if name not in self._variables or not self._variables[name].assigned:
                raise RunnerError(f"variable {name!r} has no value yet: run the 'init' or the 'restore' client first")

    def mark_assigned(self, names: frozenset[str]) -> None:
        for name in names:
            self._variables[name].assigned = True


class ArenaUser(Protocol):
    """An object that holds references to the memory of an arena."""

    def release_memory(self) -> None:
        """Drop all references to the arena's memory."""


class Arena:
    """Scratch memory shared by the plans of one device, which run one at a time.

    The arena grows to the size of the largest plan. When the arena grows, all users release the old memory and
    ``generation`` increases. A user that was bound in an earlier generation must bind again before its next step.
    """

    def __init__(self, platform: Platform | None = None) -> None:
        self.generation = 0
        self._platform = platform or HostPlatform()
        self._data: Bytes = self._platform.allocate(0)
        self._users: WeakSet[ArenaUser] = WeakSet()

    def at_least(self, nbytes: int, user: ArenaUser) -> Bytes:
        """Return the arena, enlarged to ``nbytes`` if smaller. Raises ResourceError if there is not enough memory."""
        if self._data.nbytes < nbytes:
            # First finish all work in the old memory and free it, so that the old and the new memory never coexist.
            self._platform.synchronize()
            for each in self._users:
                each.release_memory()
            self._data = self._platform.allocate(0)
            self.generation += 1
            self._data = allocate(self._platform, nbytes, "the arena of a step")
        self._users.add(user)
        return self._data


def allocate(platform: Platform, nbytes: int, what: str) -> Bytes:
    """Allocate device memory for ``what``. Raises ResourceError naming ``what`` if there is not enough memory."""
    try:
        return platform.allocate(nbytes)
    except MemoryError as error:
        raise ResourceError(f"{nbytes:,} bytes for {what} are not available: {error}") from None
