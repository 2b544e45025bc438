"""Interleavings: the order in which one process runs the parts of launched clients, from a virtual clock or a record.

A part is one step of a client on one device. The order depends on names, devices and sizes, never on tensor values.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from runner.engine.compile.program import VirtualClock
from runner.engine.graph.device import task_of
from runner.errors import RunnerError
from runner.kernels import philox


@dataclass(frozen=True)
class Launched:
    """A step begun by ``Clients.launch``, with one part per device. received: receiving -> sending device -> bytes."""

    client: str
    step: int
    received: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Begin:
    """An event: the session runs the part of a client on one device."""

    client: str
    device: str


@dataclass(frozen=True)
class End:
    """An event: the session reports a client as finished; all parts of the client have run."""

    client: str


@dataclass
class _Part:
    """A part that has not begun. missing: senders whose parts have not begun. arrival: latest known arrival time."""

    launched: Launched
    device: str
    missing: set[str]
    arrival: float


class VirtualTime:
    """A discrete-event clock: a device runs one part at a time, and transfers take time.

    As in a worker process, a part waits for its tensors, and a device begins its ready parts in launch order. The order
    of events is a pure function of the launches and of the durations of parts and transfers. If no client runs at a
    launch, the internal time restarts at 0, so that later times and their rounding do not depend on earlier events.
    """

    def __init__(self, part_s: Callable[[str, str, int], float], transfer_s: Callable[[int], float]) -> None:
        """part_s: (client, device, step) -> seconds of a part. transfer_s: bytes -> seconds."""
        self._idle_at = 0.0
        self._now = 0.0
        self._part_s = part_s
        self._transfer_s = transfer_s
        self._waiting: list[_Part] = []
        self._free: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._running: dict[str, int] = {}

    @property
    def now(self) -> float:
        """Seconds on the clock since it was created."""
        return self._idle_at + self._now

    def launched(self, launched: Launched) -> None:
        """Add a launched client."""
        if not self._running:
            self._idle_at, self._now = self.now, 0.0
            self._free.clear()
        self._running[launched.client] = len(launched.received)
        self._ends[launched.client] = self._now
        for device, sources in launched.received.items():
            self._waiting.append(_Part(launched, device, set(sources), self._now))

    def next(self) -> Begin | End:
        """Return the next event; at least one client must be launched."""
        ends = {client: self._ends[client] for client, left in self._running.items() if left == 0}
        first = min(ends, key=ends.__getitem__, default=None)
        # If several parts can begin at the same time, the first launched part begins.
        part = min((part for part in self._waiting if not part.missing), key=self._start, default=None)
        if part is not None and (first is None or self._start(part) < ends[first]):
            return self._begin(part)
        if first is None:
            raise RunnerError(f"virtual time cannot advance: {', '.join(self._running)} can neither start nor end")
        self._now = max(self._now, ends[first])
        del self._running[first], self._ends[first]
        return End(first)

    def _start(self, part: _Part) -> float:
        return max(part.arrival, self._free.get(part.device, 0.0))

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


def virtual_time(clock: VirtualClock) -> VirtualTime:
    """Return the interleaving of a virtual clock."""

    def part_s(client: str, device: str, step: int) -> float:
        # The name of the stream does not depend on the device type, so the order is the same on CPUs and GPUs.
        stream = f"virtual_time/{client}/{task_of(device)}/device:cpu:0"
        return clock.median_s[client] * math.exp(clock.sigma * standard_normal(clock.seed, stream, step))

    return VirtualTime(part_s, lambda nbytes: clock.transfer_s)


def standard_normal(seed: int, stream: str, step: int) -> float:
    """Return the standard normal random number with index ``step`` in a stream (Box-Muller method)."""
    first, second = philox.uniform(philox.key(seed, stream), np.zeros(1, np.int64), 2, step)[0]
    return math.sqrt(-2.0 * math.log1p(-first)) * math.cos(2.0 * math.pi * second)


@dataclass(frozen=True)
class Ending:
    """One line of a record: a finished client. turns: see :class:`~runner.engine.run.step_driver.Finished`."""

    client: str
    step: int
    turns: Mapping[str, int]


@dataclass
class Recorded:
    """The interleaving of an earlier run: clients finish, and parts begin on each device, in the recorded order.

    endings: one per finished client, in order. Raises RunnerError if the launches differ from the recorded ones.
    """

    endings: Sequence[Ending]
    _reported: int = 0
    _launched: dict[tuple[str, int], Launched] = field(default_factory=dict)
    _turns: dict[str, int] = field(default_factory=dict)
    _begun: set[tuple[str, int, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._at = {(device, turn): each for each in self.endings for device, turn in each.turns.items()}

    def launched(self, launched: Launched) -> None:
        self._launched[launched.client, launched.step] = launched

    def next(self) -> Begin | End:
        if self._reported == len(self.endings):
            raise RunnerError(
                f"the record ends after {self._reported} steps of clients, but the run continues: the recorded run was "
                "stopped, or was too long to record; only a run with a complete record can be repeated"
            )
        ending = self.endings[self._reported]
        for device in ending.turns:
            if (ending.client, ending.step, device) not in self._begun:
                required, device = self._next_required(ending, device)
                self._turns[device] = required.turns[device] + 1
                self._begun.add((required.client, required.step, device))
                return Begin(required.client, device)
        self._reported += 1
        del self._launched[ending.client, ending.step]
        self._begun -= {(ending.client, ending.step, device) for device in ending.turns}
        return End(ending.client)

    def _next_required(
        self, ending: Ending, device: str, awaiting: frozenset[tuple[str, int, str]] = frozenset()
    ) -> tuple[Ending, str]:
        """Return the part that must begin next so that the part of ``ending`` on ``device`` can begin.

        This is the part itself, or an earlier part on ``device`` or on a sender. awaiting: parts that await this part.
        """
        own = (ending.client, ending.step, device)
        if own in awaiting:
            raise RunnerError(f"the record is contradictory: step {own[1]} of {own[0]!r} on {device} waits for itself")
        awaiting |= {own}
        turn = self._turns.get(device, 0)
        if turn != ending.turns[device]:
            if (device, turn) not in self._at:
                raise RunnerError(f"the record is incomplete: step number {turn} of {device} is missing")
            return self._next_required(self._at[device, turn], device, awaiting)
        launched = self._launched.get((ending.client, ending.step))
        if launched is None or launched.received.keys() != ending.turns.keys():
            raise RunnerError(
                f"the next step in the record is step {ending.step} of {ending.client!r} on "
                f"{', '.join(ending.turns)}, but this run has not launched this step: the record belongs to another "
                "configuration"
            )
        for source in launched.received[device]:
            if (ending.client, ending.step, source) not in self._begun:
                return self._next_required(ending, source, awaiting)
        return ending, device


Interleaving = VirtualTime | Recorded
"""An object that receives every launch and returns the next event."""
