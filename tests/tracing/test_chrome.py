"""The file for trace viewers: what they require of it, and what every event says."""

from __future__ import annotations

import json
from typing import Any

from runner.engine.timeline import StepTime, Timeline
from runner.tracing.chrome import chrome_trace
from tests.tracing.spans import device, span

TIMELINE = Timeline(
    (span("a", "compute", 5_000, 9_500, step=3), span("b", "send", 6_000, 6_001, "k", peer="a", step=3)),
    (StepTime("master-0", 3, 4_000, 10_000),),
)


def events(phase: str, timeline: Timeline = TIMELINE) -> list[dict[str, Any]]:
    document = json.loads(chrome_trace(timeline))
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def test_events_have_microseconds_from_the_first_beginning() -> None:
    assert [(e["name"], e["cat"], e["ts"], e["dur"]) for e in events("X")] == [
        ("step 3", "step", 0.0, 6.0),
        ("compute 5000-9500", "compute", 1.0, 4.5),
        ("send k", "send", 2.0, 0.001),
    ]


def test_every_process_and_thread_has_a_number_of_its_own_and_a_name() -> None:
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events("M")}
    assert sorted(names.values()) == sorted(["master-0", "worker-0", "worker-1", "steps", device("a"), device("b")])
    for event, process in zip(events("X"), ["master-0", "worker-0", "worker-1"], strict=True):
        assert names["process_name", event["pid"], 0] == process
    assert [names["thread_name", e["pid"], e["tid"]] for e in events("X")] == ["steps", device("a"), device("b")]


def test_arguments_say_what_an_event_was() -> None:
    step, compute, send = (event["args"] for event in events("X"))
    assert step == {"step": 3}
    assert compute == {"step": 3, "node": "5000-9500", "op": "matmul", "layer": "fc"}
    assert send == {"step": 3, "node": "k", "op": "send", "layer": "", "key": "k", "peer": device("a"), "bytes": 8}


def test_nothing_recorded_is_a_file_too() -> None:
    assert events("X", Timeline((), ())) == []
