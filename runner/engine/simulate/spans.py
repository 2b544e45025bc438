"""The timeline of a simulation: the spans of its devices and links, from the times of its activities."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from runner.engine.compile.plan import DevicePlan
from runner.engine.compile.program import Client
from runner.engine.graph.device import DeviceName, task_of
from runner.engine.graph.graph import Graph
from runner.engine.run.recording import COMPUTE, INPUT, RECEIVE, SEND, WAIT, RawSpan
from runner.engine.run.timeline import ClientRun, RecordedPlan, Span, Timeline, spans_of
from runner.engine.simulate.activities import Run, Segment
from runner.engine.simulate.network import Network

Floats = NDArray[np.float64]

SESSION = "master"
"""The process of the session, as in a run on several processes."""


@dataclass(frozen=True)
class Executed:
    """One run of a client on the event loop.

    number: how many runs of all clients came before. first: number of its first activity, which is the work of the host
    before the run. inputs: numbers of the activities that end when the run has its batch. base, count: number of the
    first activity of ``run``, and how many these are. end: number of the activity that ends the run.
    """

    client: Client
    number: int
    step: int
    run: Run
    first: int
    inputs: Sequence[int]
    base: int
    count: int
    end: int

    @property
    def _segments(self) -> int:
        return sum(map(len, self.run.segments.values()))

    def arrivals(self) -> dict[str, int]:
        """Return key of a transfer -> number of the activity that ends when the tensor has arrived."""
        transfers = self.run.transfers
        each = (self.count - self._segments) // max(1, len(transfers))
        return {sent.key: self.base + each * (number + 1) - 1 for number, sent in enumerate(transfers)}

    def segments(self) -> Iterator[tuple[str, int, Segment]]:
        """Yield device, number of the activity and segment, for each segment of each device."""
        number = self.base + self.count - self._segments
        for device, parts in self.run.segments.items():
            for segment in parts:
                yield device, number, segment
                number += 1


@dataclass(frozen=True)
class LinkSpan:
    """A transfer over one link, from the start of its latency to its arrival. nbytes: bytes of the tensor."""

    link: str
    key: str
    nbytes: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class Times:
    """The seconds on the virtual clock at which each activity began and ended, of shape (activities,)."""

    starts: Floats
    ends: Floats

    def ns(self, seconds: float) -> int:
        """Return a time in whole nanoseconds."""
        return round(1e9 * seconds)


def link_spans(executed: Sequence[Executed], times: Times, network: Network) -> Iterator[LinkSpan]:
    """Yield every transfer on each link that it uses."""
    for each in executed:
        arrivals = each.arrivals()
        for sent in each.run.transfers:
            row = arrivals[sent.key]
            begin, end = times.ns(times.starts[row]), times.ns(times.ends[row])
            for link in network.route(task_of(sent.source), task_of(sent.destination)).links:
                yield LinkSpan(network.links[link].name, sent.key, sent.nbytes, begin, end)


def timeline_of(
    executed: Sequence[Executed],
    times: Times,
    plans: Mapping[str, Mapping[str, DevicePlan]],
    graph: Graph,
    *,
    detail: bool = True,
) -> Timeline:
    """Return the timeline of runs, as a session records it. plans: client -> device -> plan. graph: of the program.

    detail: whether each instruction has a span; otherwise each segment has one, and its sends are at its end.
    """
    own: dict[str, list[tuple[float, Executed, int, Segment]]] = {}
    for each in executed:
        for device, row, segment in each.segments():
            own.setdefault(device, []).append((times.starts[row], each, row, segment))
    spans: list[Span] = []
    for device, parts in own.items():
        clients = list(dict.fromkeys(each.client.name for _, each, _, _ in parts))
        recorded = [RecordedPlan(name, plans[name][device], graph) for name in clients]
        raw = _Device(recorded, {name: number for number, name in enumerate(clients)}, times, detail)
        name = DeviceName.parse(device)
        ordered = sorted(parts, key=itemgetter(0))
        spans += spans_of(f"{name.job}-{name.task}", recorded, [span for part in ordered for span in raw.spans(*part)])
    runs = (
        ClientRun(
            SESSION,
            each.client.name,
            each.number,
            each.step,
            times.ns(times.starts[each.first]),
            times.ns(times.ends[each.end]),
            each.client.deferred,
        )
        for each in executed
    )
    return Timeline(tuple(spans), tuple(runs))


@dataclass
class _Device:
    """The spans of one device, which are requested in the order of time. free: seconds at which the last one ends."""

    recorded: Sequence[RecordedPlan]
    numbers: Mapping[str, int]
    times: Times
    detail: bool
    free: float = 0.0

    def spans(self, start: float, of: Executed, row: int, segment: Segment) -> Iterator[RawSpan]:
        """Yield the spans of a segment that begins at ``start``, and of the time before it."""
        plan = self.recorded[self.numbers[of.client.name]].plan
        end = float(self.times.ends[row])
        if segment.first == 0:
            yield from self._input(of)
        arrivals = of.arrivals() if segment.waits else {}
        for position in range(segment.first, segment.first + len(segment.seconds)):
            key = plan.instructions[position].attributes.get("key", "")
            if key in arrivals and plan.instructions[position].op == "recv":
                arrival = min(start, float(self.times.ends[arrivals[key]]))
                # The part of a deferred client starts when all its tensors have arrived, so that it does not wait.
                begin = start if of.client.deferred else self.free
                yield self._span(of, position, WAIT, begin, max(begin, arrival))
                self.free = max(begin, arrival)
        yield from self._work(of, plan, segment, start, end)
        self.free = end

    def _input(self, of: Executed) -> Iterator[RawSpan]:
        """Yield the span of the host's work and of the wait for a batch, unless the device is busy for longer."""
        begin = max(self.free, float(self.times.starts[of.first]))
        end = max(float(self.times.ends[row]) for row in of.inputs)
        if end > begin:
            yield self._span(of, 0, INPUT, begin, end)
            self.free = end

    def _work(self, of: Executed, plan: DevicePlan, segment: Segment, start: float, end: float) -> Iterator[RawSpan]:
        total = sum(segment.seconds)
        scale, now = ((end - start) / total if total else 0.0), start
        for number, seconds in enumerate(segment.seconds):
            position = segment.first + number
            kind = {"send": SEND, "recv": RECEIVE}.get(plan.instructions[position].op, COMPUTE)
            if self.detail:
                later = min(end, now + scale * seconds)
                yield self._span(of, position, kind, now, later)
                now = later
            elif number == 0:
                yield self._span(of, position, kind, start, end)
            elif kind == SEND:
                yield self._span(of, position, kind, end, end)

    def _span(self, of: Executed, position: int, kind: str, begin: float, end: float) -> RawSpan:
        begin_ns, end_ns = self.times.ns(begin), self.times.ns(end)
        return RawSpan(self.numbers[of.client.name], of.number, of.step, position, kind, begin_ns, end_ns)
