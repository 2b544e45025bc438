"""The file for trace viewers: required fields, and the arguments of events."""

import json
from typing import Any

from runner.engine.run.timeline import Timeline
from runner.tracing.chrome import chrome_trace
from runner.tracing.timeline_index import TimelineIndex, Update
from tests.tracing.spans import LAUNCHED, SESSION, device, run, span

Event = dict[str, Any]

COURSE = TimelineIndex(
    Timeline(
        (
            span("a", "compute", 5_000, 9_500, step=3, number=7),
            span("b", "send", 6_000, 6_001, "k", peer="a", step=3, number=7),
        ),
        (run(4_500, 9_600, number=7, step=3),),
    )
)
UPDATES = [Update(3, 4_000, 10_000)]


def document(index: TimelineIndex = COURSE, updates: list[Update] = UPDATES) -> list[Event]:
    found: list[Event] = json.loads(chrome_trace(index, updates))["traceEvents"]
    return found


def events(phase: str, index: TimelineIndex = COURSE, updates: list[Update] = UPDATES) -> list[Event]:
    return [event for event in document(index, updates) if event["ph"] == phase]


def rows(events: list[Event]) -> dict[int, str]:
    """What is written at the row of each number."""
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def test_events_have_microseconds_from_the_first_beginning() -> None:
    assert [(e["name"], e["cat"], e["ts"], e["dur"]) for e in events("X")] == [
        ("step 3", "step", 0.0, 6.0),
        ("train 7", "run", 0.5, 5.1),
        ("train 7", "part", 1.0, 4.5),
        ("compute 5000-9500", "compute", 1.0, 4.5),
        ("train 7", "part", 2.0, 0.001),
        ("send k", "send", 2.0, 0.001),
    ]


def test_every_process_and_row_has_a_unique_number_and_a_name() -> None:
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events("M")}
    a, b = f"train {device('a')}", f"train {device('b')}"
    assert sorted(names.values()) == sorted([SESSION, "worker-0", "worker-1", "steps", "train", a, b])
    places = [SESSION, SESSION, "worker-0", "worker-0", "worker-1", "worker-1"]
    for event, process in zip(events("X"), places, strict=True):
        assert names["process_name", event["pid"], 0] == process
    assert [names["thread_name", e["pid"], e["tid"]] for e in events("X")] == ["steps", "train", a, a, b, b]


def test_arguments_describe_an_event() -> None:
    step, whole, part, compute, _, send = (event["args"] for event in events("X"))
    of_run = {"step": 3, "client": "train", "number": 7}
    assert step == {"step": 3}
    assert whole == part == of_run
    assert compute == {**of_run, "node": "5000-9500", "op": "matmul", "layer": "fc"}
    transfer = {"key": "k", "peer": device("a"), "bytes": 8}
    assert send == {**of_run, "node": "k", "op": "send", "layer": "", **transfer}


def test_launched_clients_have_separate_rows_with_their_waits() -> None:
    found = document(LAUNCHED, [])
    names = rows(found)
    a, b = device("a"), device("b")
    assert set(names.values()) == {"read", "share", f"read {a}", f"share {a}", f"read {b}", f"share {b}"}
    waits = [e for e in found if e["name"].startswith("wait for ")]
    assert [(names[e["tid"]], e["cat"], e["args"]["peer"], e["ts"], e["dur"]) for e in waits] == [
        (f"share {a}", "wait", SESSION, 0.008, 0.002),
        (f"share {b}", "wait", SESSION, 0.004, 0.006),
        (f"share {b}", "wait", a, 0.01, 0.014),
    ]


def test_a_flow_leads_from_every_send_to_its_receive() -> None:
    found = document(LAUNCHED, [])
    names = rows(found)
    begins, ends = ([e for e in found if e["ph"] == phase] for phase in "sf")
    assert [(e["id"], names[e["tid"]], e["ts"]) for e in begins] == [
        (1, f"read {device('b')}", 0.003),
        (2, f"share {device('a')}", 0.02),
    ]
    assert [(e["id"], names[e["tid"]], e["ts"], e["bp"]) for e in ends] == [
        (1, f"read {device('a')}", 0.006, "e"),
        (2, f"share {device('b')}", 0.024, "e"),
    ]
    assert {(e["name"], e["cat"]) for e in [*begins, *ends]} == {("transfer", "transfer")}


def test_a_transfer_of_which_one_end_is_recorded_has_no_flow() -> None:
    assert events("s") == events("f") == []


def test_nothing_recorded_is_a_file_too() -> None:
    assert document(TimelineIndex(Timeline((), ())), []) == []
