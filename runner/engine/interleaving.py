"""In which order parts of launched clients run where one process runs them all: on a virtual clock, or as recorded.

Whoever decides sees names, devices and sizes, never values; the session asks what comes next and does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from runner.errors import RunnerError


@dataclass(frozen=True)
class Launched:
    """One step of a client that is under way. received: device -> device that sends to it -> bytes."""

    client: str
    step: int
    received: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Begin:
    """Run the part of a client on one device."""

    client: str
    device: str


@dataclass(frozen=True)
class End:
    """Tell that a client has come to its end; all its parts have run."""

    client: str


class Interleaving(Protocol):
    """Told of every launch, asked for every next event."""

    def launched(self, launched: Launched) -> None:
        """A client is under way from now on."""
        ...

    def next(self) -> Begin | End:
        """What happens next; something is under way."""
        ...


Seconds = Callable[[str, str, int], float]
"""(client, device, step) -> how long that part takes on the virtual clock."""


@dataclass
class _Part:
    """A part of a launched client that has not run. arrival: when what came of it so far was there."""

    launched: Launched
    device: str
    missing: set[str]
    arrival: float


class VirtualTime:
    """A clock that jumps from event to event: a device is busy with one part at a time, and wires take time.

    As in a worker process, parts begin in the order of their launches, but none before all that it receives is there.
    A pure function of the launches and of the seconds that parts and transfers take.
    """

    def __init__(self, part_s: Seconds, transfer_s: Callable[[int], float]) -> None:
        """part_s: seconds of every part. transfer_s: bytes -> seconds on a wire."""
        self.now = 0.0
        self._part_s = part_s
        self._transfer_s = transfer_s
        self._waiting: list[_Part] = []
        self._free: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._running: dict[str, int] = {}

    def launched(self, launched: Launched) -> None:
        """A client is under way; see :class:`Interleaving`."""
        self._running[launched.client] = len(launched.received)
        self._ends[launched.client] = self.now
        for device, sources in launched.received.items():
            self._waiting.append(_Part(launched, device, set(sources), self.now))

    def next(self) -> Begin | End:
        """The event that comes first; see :class:`Interleaving`."""
        ends = {client: self._ends[client] for client, left in self._running.items() if left == 0}
        first = min(ends, key=ends.__getitem__, default=None)
        part = self._next_part()
        if part is not None and (first is None or self._start(part) < ends[first]):
            return self._begin(part)
        if first is None:
            raise RunnerError(f"virtual time stands still: {', '.join(self._running)} can neither begin nor end")
        self.now = max(self.now, ends[first])
        del self._running[first], self._ends[first]
        return End(first)

    def _start(self, part: _Part) -> float:
        return max(part.arrival, self._free.get(part.device, 0.0))

    def _next_part(self) -> _Part | None:
        """The part that can begin first; of several the one launched first."""
        return min((part for part in self._waiting if not part.missing), key=self._start, default=None)

    def _begin(self, part: _Part) -> Begin:
        self._waiting.remove(part)
        client, step = part.launched.client, part.launched.step
        end = self._start(part) + self._part_s(client, part.device, step)
        self._free[part.device] = end
        self._running[client] -= 1
        self._ends[client] = max(self._ends[client], end)
        for other in self._waiting:
            if other.launched is part.launched and part.device in other.missing:
                other.missing.remove(part.device)
                nbytes = part.launched.received[other.device][part.device]
                other.arrival = max(other.arrival, end + self._transfer_s(nbytes))
        return Begin(client, part.device)


@dataclass(frozen=True)
class Ending:
    """One line of a record: a client that came to its end, and the turn of its part on every device."""

    client: str
    step: int
    turns: Mapping[str, int]


@dataclass
class Recorded:
    """The interleaving of an earlier run: clients end in the recorded order, and every device keeps its order of turns.

    endings: as they were told. Raises RunnerError where what is launched is not what was recorded.
    """

    endings: Sequence[Ending]
    _told: int = 0
    _launched: dict[tuple[str, int], Launched] = field(default_factory=dict)
    _turns: dict[str, int] = field(default_factory=dict)
    _begun: set[tuple[str, int, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._at = {(device, turn): each for each in self.endings for device, turn in each.turns.items()}

    def launched(self, launched: Launched) -> None:
        """A client is under way; see :class:`Interleaving`."""
        self._launched[launched.client, launched.step] = launched

    def next(self) -> Begin | End:
        """What the record says; see :class:`Interleaving`."""
        if self._told == len(self.endings):
            raise RunnerError(
                f"the record ends after {self._told} endings, but the run goes on: that run was stopped, or was too "
                "long to be recorded; only what is recorded as a whole can be repeated"
            )
        ending = self.endings[self._told]
        for device in ending.turns:
            if (ending.client, ending.step, device) not in self._begun:
                return self._begin(*self._foremost(ending, device))
        self._told += 1
        del self._launched[ending.client, ending.step]
        self._begun -= {(ending.client, ending.step, device) for device in ending.turns}
        return End(ending.client)

    def _foremost(
        self, ending: Ending, device: str, awaiting: frozenset[tuple[str, int, str]] = frozenset()
    ) -> tuple[Ending, str]:
        """The part to begin so that this one can: what the device has begun before it, and what sends to it.

        awaiting: the parts that can begin when this one has.
        """
        own = (ending.client, ending.step, device)
        if own in awaiting:
            raise RunnerError(f"the record contradicts itself: step {own[1]} of {own[0]!r} on {device} awaits itself")
        awaiting |= {own}
        turn = self._turns.get(device, 0)
        if turn != ending.turns[device]:
            return self._foremost(self._of_turn(device, turn), device, awaiting)
        launched = self._launched.get((ending.client, ending.step))
        if launched is None or launched.received.keys() != ending.turns.keys():
            raise RunnerError(
                f"the record has step {ending.step} of {ending.client!r} on {', '.join(ending.turns)} next, but this "
                "run has launched no such step: it is the record of another configuration"
            )
        for source in launched.received[device]:
            if (ending.client, ending.step, source) not in self._begun:
                return self._foremost(ending, source, awaiting)
        return ending, device

    def _of_turn(self, device: str, turn: int) -> Ending:
        if (device, turn) not in self._at:
            raise RunnerError(f"the record lacks what {device} began as number {turn}: it was cut off")
        return self._at[device, turn]

    def _begin(self, ending: Ending, device: str) -> Begin:
        self._turns[device] = ending.turns[device] + 1
        self._begun.add((ending.client, ending.step, device))
        return Begin(ending.client, device)
