"""A timeline in the Trace Event Format, which chrome://tracing and ui.perfetto.dev open.

Format: "Trace Event Format", Google, 2016: complete events ("X") with times in microseconds, and metadata events
("M") with names.
"""

from __future__ import annotations

import json
from typing import Any

from runner.engine.timeline import Span, StepTime, Timeline

_NS_PER_US = 1000
_STEPS_THREAD = "steps"


def chrome_trace(timeline: Timeline) -> bytes:
    """Return the file: a process per process, in it a thread per device and one for the steps of the session.

    Time 0 is the beginning of what was recorded. Every event says its step; those of devices node, op and layer; those
    of transfers key, peer and bytes.
    """
    tracks = _tracks(timeline)
    timed: list[Span | StepTime] = [*timeline.steps, *timeline.spans]
    origin = min((each.begin_ns for each in timed), default=0)
    events = _names(tracks)
    events += [_event(step, f"step {step.step}", "step", _STEPS_THREAD, {}, tracks, origin) for step in timeline.steps]
    events += [
        _event(span, f"{span.kind} {span.node}", span.kind, span.device, _arguments(span), tracks, origin)
        for span in timeline.spans
    ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")).encode()


def _tracks(timeline: Timeline) -> dict[tuple[str, str], tuple[int, int]]:
    """Numbers of process and thread of each process and track, the session's first."""
    tracks = [(step.process, _STEPS_THREAD) for step in timeline.steps]
    tracks += [(span.process, span.device) for span in timeline.spans]
    processes = {name: number for number, name in enumerate(dict.fromkeys(process for process, _ in tracks), start=1)}
    return {
        (process, track): (processes[process], number)
        for number, (process, track) in enumerate(dict.fromkeys(tracks), start=1)
    }


def _names(tracks: dict[tuple[str, str], tuple[int, int]]) -> list[dict[str, Any]]:
    processes = {pid: process for (process, _), (pid, _) in tracks.items()}
    named: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process}}
        for pid, process in processes.items()
    ]
    named += [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": track}}
        for (_, track), (pid, tid) in tracks.items()
    ]
    return named


def _event(
    timed: Span | StepTime,
    name: str,
    category: str,
    track: str,
    arguments: dict[str, Any],
    tracks: dict[tuple[str, str], tuple[int, int]],
    origin: int,
) -> dict[str, Any]:
    pid, tid = tracks[timed.process, track]
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": (timed.begin_ns - origin) / _NS_PER_US,
        "dur": (timed.end_ns - timed.begin_ns) / _NS_PER_US,
        "args": {"step": timed.step, **arguments},
    }


def _arguments(span: Span) -> dict[str, Any]:
    arguments: dict[str, Any] = {"node": span.node, "op": span.op, "layer": span.layer}
    if span.key:
        arguments |= {"key": span.key, "peer": span.peer, "bytes": span.nbytes}
    return arguments
