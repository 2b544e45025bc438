"""Write a timeline in the Trace Event Format, which chrome://tracing and ui.perfetto.dev open.

Format: "Trace Event Format", Google, 2016: complete events ("X") with times in microseconds, flow events ("s", "f")
from one complete event to another, and metadata events ("M") with names.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from runner.engine.run.recording import RECEIVE, WAIT
from runner.engine.run.timeline import ClientRun, LinkSpan, Span
from runner.tracing.critical_path import Segment, critical_path, waits_between
from runner.tracing.timeline_index import TimelineIndex, Update

_NS_PER_US = 1000
_UPDATES = "steps"
_CRITICAL = "critical path"
_TRANSFER = "transfer"
_LINKS = "links"

_Lane = tuple[str, str]  # a process, and the label of one of its rows in the viewer


@dataclass(frozen=True)
class _Slice:
    """A complete event that names its process and row; the format refers to both by number (see ``_Rows``)."""

    lane: _Lane
    name: str
    category: str
    begin_ns: int
    end_ns: int
    arguments: dict[str, Any]


def chrome_trace(index: TimelineIndex, updates: Sequence[Update], links: Sequence[LinkSpan] = ()) -> bytes:
    """Return the content of a trace file as JSON. links: transfers over the links of a simulation.

    Each process has one row per client and device. In each row, every run of the client is a slice that contains the
    slices of the run's spans; waits before the run are slices too. The session's process also has a row of updates, a
    row with the segments of their critical paths, and a row of runs for each client. A flow leads from a send to its
    receive if both were recorded. Each link has a row of transfers, and further rows for transfers that overlap. Time 0
    is the earliest event. Arguments: step; place and kind (in critical paths); client and run number (in runs and
    spans); node, op and layer (in spans); key, peer and bytes (in transfers).
    """
    slices = [*_of_session(index, updates), *_of_devices(index), *_of_links(links)]
    rows = _Rows(slices)
    events = [*rows.names(), *(rows.event(each) for each in slices), *_flows(index, rows)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")).encode()


def _of_session(index: TimelineIndex, updates: Sequence[Update]) -> Iterator[_Slice]:
    for update in updates:
        lane, step = (index.session, _UPDATES), update.step
        yield _Slice(lane, f"step {step}", "step", update.begin_ns, update.end_ns, {"step": step})
    for update in updates:
        for segment in critical_path(index, update):
            yield _critical(index, update, segment)
    for run in index.timeline.runs:
        lane = (run.process, run.client)
        yield _Slice(lane, _name(run), "run", run.begin_ns, run.end_ns, _run(run))


def _critical(index: TimelineIndex, update: Update, segment: Segment) -> _Slice:
    span, arguments = segment.span, {"step": update.step, "place": segment.place, "kind": segment.kind}
    what = segment.kind if span is None else f"{segment.kind} {span.node}"
    if span is not None:
        arguments = _run(span) | _facts(span) | arguments
    lane, name = (index.session, _CRITICAL), f"{what} ({segment.process})"
    return _Slice(lane, name, _CRITICAL, segment.begin_ns, segment.end_ns, arguments)


def _of_devices(index: TimelineIndex) -> Iterator[_Slice]:
    for wait in waits_between(index):
        name, arguments = f"wait for {wait.peer}", _run(wait.first) | {"peer": wait.peer}
        yield _Slice(_lane(wait.first), name, WAIT, wait.begin_ns, wait.end_ns, arguments)
    for part in index.parts():
        first, last = part[0], part[-1]
        yield _Slice(_lane(first), _name(first), "part", first.begin_ns, last.end_ns, _run(first))
        for span in part:
            name = f"{span.kind} {span.node}"
            yield _Slice(_lane(span), name, span.kind, span.begin_ns, span.end_ns, _run(span) | _facts(span))


def _of_links(links: Sequence[LinkSpan]) -> Iterator[_Slice]:
    free: dict[str, list[int]] = {}
    for each in sorted(links, key=lambda span: span.begin_ns):
        ends = free.setdefault(each.link, [])
        row = next((number for number, end in enumerate(ends) if end <= each.begin_ns), len(ends))
        ends[row : row + 1] = [each.end_ns]
        lane = (_LINKS, each.link if row == 0 else f"{each.link} ({row + 1})")
        yield _Slice(lane, each.key, _TRANSFER, each.begin_ns, each.end_ns, {"bytes": each.nbytes})


def _lane(span: Span) -> _Lane:
    return span.process, f"{span.client} {span.device}"


def _name(of: Span | ClientRun) -> str:
    return f"{of.client} {of.number}"


def _run(of: Span | ClientRun) -> dict[str, Any]:
    return {"step": of.step, "client": of.client, "number": of.number}


def _facts(span: Span) -> dict[str, Any]:
    facts: dict[str, Any] = {"node": span.node, "op": span.op, "layer": span.layer}
    if span.key:
        facts |= {"key": span.key, "peer": span.peer, "bytes": span.nbytes}
    return facts


def _flows(index: TimelineIndex, rows: "_Rows") -> Iterator[dict[str, Any]]:
    """Yield the two events of a flow for each transfer of which the send and the receive were recorded."""
    received = [span for span in index.timeline.spans if span.kind == RECEIVE]
    ends = [(send, span) for span in received if (send := index.send_of(span)) is not None]
    for number, (send, span) in enumerate(ends, start=1):
        flow = {"name": _TRANSFER, "cat": _TRANSFER, "id": number}
        yield {"ph": "s", **flow, **rows.at(_lane(send), send.begin_ns)}
        yield {"ph": "f", "bp": "e", **flow, **rows.at(_lane(span), span.begin_ns)}


class _Rows:
    """The numbers of processes and rows, which the format requires, in the order of first use."""

    def __init__(self, slices: Sequence[_Slice]) -> None:
        self._origin = min((each.begin_ns for each in slices), default=0)
        lanes = dict.fromkeys(each.lane for each in slices)
        processes = {process: pid for pid, process in enumerate(dict.fromkeys(process for process, _ in lanes), 1)}
        self._processes = processes
        self._numbers = {lane: (processes[lane[0]], tid) for tid, lane in enumerate(lanes, start=1)}

    def names(self) -> Iterator[dict[str, Any]]:
        """Yield the metadata events that name processes and rows."""
        for process, pid in self._processes.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process}}
        for (_, row), (pid, tid) in self._numbers.items():
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": row}}

    def at(self, lane: _Lane, time_ns: int) -> dict[str, Any]:
        """Return the fields of an event that state the process, the row and the time."""
        pid, tid = self._numbers[lane]
        return {"pid": pid, "tid": tid, "ts": (time_ns - self._origin) / _NS_PER_US}

    def event(self, each: _Slice) -> dict[str, Any]:
        at, dur = self.at(each.lane, each.begin_ns), (each.end_ns - each.begin_ns) / _NS_PER_US
        return {"ph": "X", "name": each.name, "cat": each.category, **at, "dur": dur, "args": each.arguments}
