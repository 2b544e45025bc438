"""A timeline in the Trace Event Format, which chrome://tracing and ui.perfetto.dev open.

Format: "Trace Event Format", Google, 2016: complete events ("X") with times in microseconds, flow events ("s", "f")
from one to another, and metadata events ("M") with names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from runner.engine.recording import RECEIVE, WAIT
from runner.engine.timeline import ClientRun, Span
from runner.tracing.course import Course, Update
from runner.tracing.waiting import waits_between

_NS_PER_US = 1000
_UPDATES = "steps"
_TRANSFER = "transfer"

_Lane = tuple[str, str]
"""A process, and what is written at its row."""


@dataclass(frozen=True)
class _Slice:
    """A complete event before it has numbers."""

    lane: _Lane
    name: str
    category: str
    begin_ns: int
    end_ns: int
    arguments: dict[str, Any]


def chrome_trace(course: Course, updates: Sequence[Update]) -> bytes:
    """Return the file: a process per process, in it a row per client and device, and rows for what the session saw.

    Rows of a device have a slice for each run of the client, in it what it consists of, and what the device waited for
    before it; those of the session a slice for each update, and for each run until all had answered. Flows lead from
    every send to its receive. Time 0 is the beginning of what is shown. Every event says its step, those of runs its
    client and its number; those of devices node, op and layer; those of transfers key, peer and bytes.
    """
    slices = [*_of_session(course, updates), *_of_devices(course)]
    rows = _Rows(slices)
    events = [*rows.names(), *(rows.event(each) for each in slices), *_flows(course, rows)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")).encode()


def _of_session(course: Course, updates: Sequence[Update]) -> Iterator[_Slice]:
    for update in updates:
        lane, step = (course.session, _UPDATES), update.step
        yield _Slice(lane, f"step {step}", "step", update.begin_ns, update.end_ns, {"step": step})
    for run in course.timeline.runs:
        lane = (run.process, run.client)
        yield _Slice(lane, _name(run), "run", run.begin_ns, run.end_ns, _run(run))


def _of_devices(course: Course) -> Iterator[_Slice]:
    for wait in waits_between(course):
        name, arguments = f"wait for {wait.whom}", _run(wait.first) | {"peer": wait.whom}
        yield _Slice(_lane(wait.first), name, WAIT, wait.begin_ns, wait.end_ns, arguments)
    for part in course.parts():
        first, last = part[0], part[-1]
        yield _Slice(_lane(first), _name(first), "part", first.begin_ns, last.end_ns, _run(first))
        for span in part:
            name = f"{span.kind} {span.node}"
            yield _Slice(_lane(span), name, span.kind, span.begin_ns, span.end_ns, _run(span) | _facts(span))


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


def _flows(course: Course, rows: _Rows) -> Iterator[dict[str, Any]]:
    """An arrow for every tensor of which both ends are recorded."""
    received = [span for span in course.timeline.spans if span.kind == RECEIVE]
    ends = [(send, span) for span in received if (send := course.send_of(span)) is not None]
    for number, (send, span) in enumerate(ends, start=1):
        flow = {"name": _TRANSFER, "cat": _TRANSFER, "id": number}
        yield {"ph": "s", **flow, **rows.at(_lane(send), send.begin_ns)}
        yield {"ph": "f", "bp": "e", **flow, **rows.at(_lane(span), span.begin_ns)}


class _Rows:
    """The numbers of processes and rows, as the format wants them, in the order in which they are first used."""

    def __init__(self, slices: Sequence[_Slice]) -> None:
        self._origin = min((each.begin_ns for each in slices), default=0)
        lanes = dict.fromkeys(each.lane for each in slices)
        processes = {process: pid for pid, process in enumerate(dict.fromkeys(process for process, _ in lanes), 1)}
        self._processes = processes
        self._numbers = {lane: (processes[lane[0]], tid) for tid, lane in enumerate(lanes, start=1)}

    def names(self) -> Iterator[dict[str, Any]]:
        """What processes and rows are called."""
        for process, pid in self._processes.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process}}
        for (_, row), (pid, tid) in self._numbers.items():
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": row}}

    def at(self, lane: _Lane, time_ns: int) -> dict[str, Any]:
        """Where an event is, and when."""
        pid, tid = self._numbers[lane]
        return {"pid": pid, "tid": tid, "ts": (time_ns - self._origin) / _NS_PER_US}

    def event(self, each: _Slice) -> dict[str, Any]:
        """A complete event."""
        return {
            "ph": "X",
            "name": each.name,
            "cat": each.category,
            **self.at(each.lane, each.begin_ns),
            "dur": (each.end_ns - each.begin_ns) / _NS_PER_US,
            "args": each.arguments,
        }
