"""The timeline of a simulation: the spans of its devices and links, from the times of its activities."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from runner.engine.compile.plan import DevicePlan
from runner.engine.compile.program import Client
from runner.engine.events.loop import Floats
from runner.engine.graph.device import DeviceName, task_of
from runner.engine.graph.graph import Graph
from runner.engine.run.recording import COMPUTE, INPUT, RECEIVE, SEND, WAIT, RawSpan
from runner.engine.run.timeline import ClientRun, LinkSpan, RecordedPlan, Span, Timeline, spans_of
from runner.engine.simulate.activities import ClientActivities, Segment
from runner.engine.simulate.network import Network

SESSION = "master"
"""The process of the session, as in a run on several processes."""


@dataclass(slots=True)
class Executed:
    """One run of a client on the event loop.

    number: number of earlier runs of all clients. first: number of its first activity, which is the work of the host
    before the run. inputs: numbers of the activities that end when the run has its batch. base: number of the
    first activity of ``run``. end: number of the activity that ends the run. offset_s: seconds on the clock at the
    last restart of the loop before the run. recorded: whether the run is in timelines. times: start and end of each
    activity from ``first`` to ``end``, in seconds since that restart.
    """

    client: Client
    number: int
    step: int
    run: ClientActivities
    first: int
    inputs: Sequence[int]
    base: int
    end: int
    offset_s: float
    recorded: bool
    times: tuple[Floats, Floats] = (np.zeros(0), np.zeros(0))

    def start_s(self, number: int) -> float:
        """Return the seconds on the clock at which an activity began."""
        return self.offset_s + float(self.times[0][number - self.first])

    def end_s(self, number: int) -> float:
        """Return the seconds on the clock at which an activity ended."""
        return self.offset_s + float(self.times[1][number - self.first])

    def arrival(self, key: str) -> int:
        """Return the number of the activity that ends when the tensor of a transfer has arrived."""
        return self.base + self.run.arrivals[key]

    def segments(self) -> Iterator[tuple[str, int, Segment]]:
        """Yield device, number of the activity and segment, for each segment of each device."""
        number = self.base
        for device, parts in self.run.parts.items():
            for segment in parts:
                yield device, number, segment
                number += 1


def _ns(seconds: float) -> int:
    """Return a time in whole nanoseconds."""
    return round(1e9 * seconds)


def link_spans(executed: Sequence[Executed], network: Network) -> Iterator[LinkSpan]:
    """Yield every transfer on each link that it uses."""
    for each in executed:
        for sent in each.run.transfers:
            row = each.arrival(sent.key)
            begin, end = _ns(each.start_s(row)), _ns(each.end_s(row))
            for link in network.route(task_of(sent.source), task_of(sent.destination)).links:
                yield LinkSpan(network.links[link].name, sent.key, sent.nbytes, begin, end)


def timeline_of(
    executed: Sequence[Executed], plans: Mapping[str, Mapping[str, DevicePlan]], graph: Graph, *, detail: bool
) -> Timeline:
    """Return the timeline of runs, as a session records it. plans: client -> device -> plan. graph: of the program.

    detail: whether each instruction has a span. Otherwise, each segment has one span, and its sends have empty spans
    at its end.
    """
    own: dict[str, list[tuple[float, Executed, int, Segment]]] = {}
    for each in executed:
        for device, row, segment in each.segments():
            own.setdefault(device, []).append((each.start_s(row), each, row, segment))
    spans: list[Span] = []
    for device, parts in own.items():
        clients = list(dict.fromkeys(each.client.name for _, each, _, _ in parts))
        recorded = [RecordedPlan(name, plans[name][device], graph) for name in clients]
        raw = _Device(recorded, {name: number for number, name in enumerate(clients)}, detail)
        name = DeviceName.parse(device)
        ordered = sorted(parts, key=itemgetter(0))
        spans += spans_of(f"{name.job}-{name.task}", recorded, [span for part in ordered for span in raw.spans(*part)])
    runs = (
        ClientRun(
            SESSION,
            each.client.name,
            each.number,
            each.step,
            _ns(each.start_s(each.first)),
            _ns(each.end_s(each.end)),
            each.client.deferred,
        )
        for each in executed
    )
    return Timeline(tuple(spans), tuple(runs))


@dataclass
class _Device:
    """The spans of one device, requested in the order of time. free: seconds on the clock when the last span ends."""

    recorded: Sequence[RecordedPlan]
    numbers: Mapping[str, int]
    detail: bool
    free: float = 0.0

    def spans(self, start: float, of: Executed, row: int, segment: Segment) -> Iterator[RawSpan]:
        """Yield the spans of a segment that begins at ``start``, and of the time before it."""
        plan = self.recorded[self.numbers[of.client.name]].plan
        end = of.end_s(row)
        if segment.first == 0:
            yield from self._input(of)
        for position in range(segment.first, segment.first + len(segment.seconds)):
            key = plan.instructions[position].attributes.get("key", "")
            if plan.instructions[position].op == "recv":
                arrival = min(start, of.end_s(of.arrival(key)))
                # A device starts its part of a deferred client after all tensors have arrived, so this span is empty.
                begin = start if of.client.deferred else self.free
                yield self._span(of, position, WAIT, begin, max(begin, arrival))
                self.free = max(begin, arrival)
        yield from self._work(of, plan, segment, start, end)
        self.free = end

    def _input(self, of: Executed) -> Iterator[RawSpan]:
        """Yield the span of the host's work and of the wait for a batch, unless the device is busy for longer."""
        begin = max(self.free, of.start_s(of.first))
        end = max(of.end_s(row) for row in of.inputs)
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
        begin_ns, end_ns = _ns(begin), _ns(end)
        return RawSpan(self.numbers[of.client.name], of.number, of.step, position, kind, begin_ns, end_ns)
