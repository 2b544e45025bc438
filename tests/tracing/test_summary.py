"""Summaries and trace files of timelines, and the idle times of devices."""

import json
import re
from dataclasses import replace
from typing import Any

from runner.engine.run.timeline import Timeline
from runner.tracing.chrome import chrome_trace
from runner.tracing.critical_path import Waited, spent, waited, waits_between
from runner.tracing.summary import summary_table, trace_summary
from runner.tracing.timeline_index import TimelineIndex, Update
from tests.tracing.spans import ALONE, B_WAITS_FOR_A, LAUNCHED, SESSION, SHARE, device, one_run, run, span, tracks

SECOND = [replace(each, step=1, number=1, begin_ns=each.begin_ns + 20, end_ns=each.end_ns + 20) for each in ALONE]
SUMMARY = trace_summary(
    TimelineIndex(Timeline((*B_WAITS_FOR_A, *SECOND), (run(0, 20), run(22, 30, step=1, number=1)))),
    [Update(0, 0, 20), Update(1, 22, 30)],
)


def test_a_step_is_summed_by_kind_layer_and_process() -> None:
    first, second = SUMMARY["steps"]
    assert first == {
        "step": 0,
        "ns": 20,
        "critical_path_ns": {
            "by_kind": {"compute": 15, "send": 2, "receive": 1, "wait": 2},
            "by_layer": {"-": 5, "fc": 15},
            "by_process": {"worker-0": 12, "worker-1": 8},
        },
        "processes_ns": {
            "worker-0": {"compute": 11, "send": 2, "idle": 7},
            "worker-1": {"compute": 8, "wait": 11, "receive": 1, "idle": 0},
        },
        "waited": [{"who": "worker-1", "for": "worker-0", "times": 1, "ns": 11}],
    }
    assert (second["step"], second["ns"], second["waited"]) == (1, 8, [])
    assert second["critical_path_ns"]["by_kind"] == {"input": 1, "compute": 5, "other": 2}
    assert second["processes_ns"] == {"worker-0": {"input": 1, "compute": 5, "idle": 2}, "worker-1": {"idle": 8}}


def test_launched_runs_are_summed_over_session_and_devices() -> None:
    (step,) = trace_summary(LAUNCHED, [Update(5, 0, 30)])["steps"]
    assert step["critical_path_ns"]["by_process"] == {"master-0": 6, "worker-0": 15, "worker-1": 9}
    assert {sum(kinds.values()) for kinds in step["processes_ns"].values()} == {30}
    assert step["waited"] == [
        {"who": "worker-1", "for": "worker-0", "times": 1, "ns": 14},
        {"who": "worker-1", "for": "master-0", "times": 1, "ns": 6},
        {"who": "worker-0", "for": "master-0", "times": 1, "ns": 2},
    ]


def test_every_node_that_computes_has_its_median() -> None:
    spans = [replace(span("a", "compute", 10 * k, 10 * k + ns), node="y") for k, ns in enumerate((5, 1, 3, 8))]
    other = [span("b", "send", 0, 9, "k"), span("b", "compute", 1, 3)]
    assert trace_summary(TimelineIndex(Timeline((*spans, *other), ())), [])["node_ns"] == {"1-3": 2, "y": 4}


def test_the_table_has_shares_of_all_steps_and_a_line_for_each_step() -> None:
    lines = summary_table(SUMMARY).splitlines()
    assert lines[0] == "critical path of 2 step(s), ms per step, share"
    assert re.fullmatch(r"  kind +compute +0\.000 +71\.4%", lines[1])
    assert lines[-4:] == [
        "  worker-0         input 3.6%, compute 57.1%, send 7.1%, idle 32.1%",
        "  worker-1         compute 28.6%, receive 3.6%, wait 39.3%, idle 28.6%",
        "step 0: 0.000 ms; waited: worker-1 for worker-0 0.000 (1x)",
        "step 1: 0.000 ms; waited: no process",
    ]


def test_eight_layers_are_listed_and_the_rest_is_summed() -> None:
    spans = [replace(span("a", "compute", 10 * k, 10 * k + 10), layer=f"fc{k:02}") for k in range(10)]
    index, update = one_run(spans)
    lines = summary_table(trace_summary(index, [update])).splitlines()
    layers = [line.split() for line in lines if line.startswith("  layer")]
    assert [line[1] for line in layers[:-1]] == [f"fc{k:02}" for k in range(8)]
    assert (layers[-1][1:3], layers[-1][-1]) == (["2", "more"], "20.0%")


def test_empty_recording_is_reported() -> None:
    assert summary_table(trace_summary(TimelineIndex(Timeline((), ())), [])) == "no step was recorded"


A, B, C = map(device, "abc")


def test_all_waits_of_an_update_count_on_and_off_the_critical_path() -> None:
    index, update = one_run(tracks("a 0 compute 3 wait:y:b 9 - 20 wait:z:b 21", "b 0 wait:x:a 4", "c 0 wait:w:a 2"))
    assert list(waits_between(index)) == []
    found = waited(index, [], update)
    assert found == {(A, B): Waited(2, 7), (B, A): Waited(1, 4), (C, A): Waited(1, 2)}
    assert list(found) == [(A, B), (B, A), (C, A)]
    assert waited(index, [], Update(0, 4, 20)) == {(A, B): Waited(1, 5)}


def test_before_a_launched_run_a_device_waits_for_its_launch_then_for_the_last_transfer() -> None:
    between = [(each.first.device, each.peer, each.begin_ns, each.end_ns) for each in waits_between(LAUNCHED)]
    assert between == [(A, SESSION, 8, 10), (B, SESSION, 4, 10), (B, A, 10, 24)]
    found = waited(LAUNCHED, waits_between(LAUNCHED), Update(0, 0, 12))
    assert found == {(B, SESSION): Waited(1, 6), (A, SESSION): Waited(1, 2), (B, A): Waited(1, 2)}


def test_a_device_that_is_busy_until_it_can_begin_does_not_wait() -> None:
    busy = span("b", "compute", 9, 24, client="other")
    index = TimelineIndex(Timeline((busy, *SHARE), (run(10, 28, client="share", launched=True),)))
    assert list(waits_between(index)) == []


def test_the_time_of_an_update_is_split_by_kind_on_every_device() -> None:
    index, update = LAUNCHED, Update(0, 0, 30)
    assert spent(index, update) == {
        A: {"receive": 1, "compute": 9, "input": 1, "send": 1, "idle": 18},
        B: {"compute": 2, "send": 1, "receive": 1, "idle": 26},
    }
    assert spent(index, Update(0, 14, 25)) == {A: {"compute": 6, "send": 1, "idle": 4}, B: {"receive": 1, "idle": 10}}


Event = dict[str, Any]

COMPUTED = span("a", "compute", 5_000, 9_500, step=3, number=7)
SENT = span("b", "send", 6_000, 6_001, "k", peer="a", step=3, number=7)
RECORDED = TimelineIndex(Timeline((COMPUTED, SENT), (run(4_500, 9_600, number=7, step=3),)))
UPDATES = [Update(3, 4_000, 10_000)]


def document(index: TimelineIndex = RECORDED, updates: list[Update] = UPDATES) -> list[Event]:
    found: list[Event] = json.loads(chrome_trace(index, updates))["traceEvents"]
    return found


def events(phase: str, index: TimelineIndex = RECORDED, updates: list[Update] = UPDATES) -> list[Event]:
    return [event for event in document(index, updates) if event["ph"] == phase]


def rows(events: list[Event]) -> dict[int, str]:
    """Return the name of each row by its number."""
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def test_times_of_events_are_microseconds_from_the_first_beginning() -> None:
    assert [(e["name"], e["cat"], e["ts"], e["dur"]) for e in events("X")] == [
        ("step 3", "step", 0.0, 6.0),
        ("other (master-0)", "critical path", 0.0, 0.5),
        ("other (worker-0)", "critical path", 0.5, 0.5),
        ("compute 5000-9500 (worker-0)", "critical path", 1.0, 4.5),
        ("other (master-0)", "critical path", 5.5, 0.5),
        ("train 7", "run", 0.5, 5.1),
        ("train 7", "part", 1.0, 4.5),
        ("compute 5000-9500", "compute", 1.0, 4.5),
        ("train 7", "part", 2.0, 0.001),
        ("send k", "send", 2.0, 0.001),
    ]


def test_every_process_and_row_has_a_unique_number_and_a_name() -> None:
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events("M")}
    a, b = f"train {A}", f"train {B}"
    assert sorted(names.values()) == sorted([SESSION, "worker-0", "worker-1", "steps", "critical path", "train", a, b])
    places = [*[SESSION] * 6, "worker-0", "worker-0", "worker-1", "worker-1"]
    for event, process in zip(events("X"), places, strict=True):
        assert names["process_name", event["pid"], 0] == process
    rows_of_events = [names["thread_name", e["pid"], e["tid"]] for e in events("X")]
    assert rows_of_events == ["steps", *["critical path"] * 4, "train", a, a, b, b]


def test_arguments_describe_an_event() -> None:
    step, _, start, critical, _, whole, part, compute, _, send = (event["args"] for event in events("X"))
    of_run = {"step": 3, "client": "train", "number": 7}
    assert step == {"step": 3}
    assert whole == part == of_run
    assert compute == {**of_run, "node": "5000-9500", "op": "matmul", "layer": "fc"}
    assert start == {"step": 3, "place": A, "kind": "other"}
    assert critical == {**compute, "place": A, "kind": "compute"}
    assert send == {**of_run, "node": "k", "op": "send", "layer": "", "key": "k", "peer": A, "bytes": 8}


def test_launched_clients_have_separate_rows_with_their_waits() -> None:
    found = document(LAUNCHED, [])
    names = rows(found)
    assert set(names.values()) == {"read", "share", f"read {A}", f"share {A}", f"read {B}", f"share {B}"}
    waits = [e for e in found if e["name"].startswith("wait for ")]
    assert [(names[e["tid"]], e["cat"], e["args"]["peer"], e["ts"], e["dur"]) for e in waits] == [
        (f"share {A}", "wait", SESSION, 0.008, 0.002),
        (f"share {B}", "wait", SESSION, 0.004, 0.006),
        (f"share {B}", "wait", A, 0.01, 0.014),
    ]


def test_a_flow_leads_from_every_send_to_its_receive() -> None:
    found = document(LAUNCHED, [])
    names = rows(found)
    begins, ends = ([e for e in found if e["ph"] == phase] for phase in "sf")
    sent = [(e["id"], names[e["tid"]], e["ts"]) for e in begins]
    assert sent == [(1, f"read {B}", 0.003), (2, f"share {A}", 0.02)]
    received = [(e["id"], names[e["tid"]], e["ts"], e["bp"]) for e in ends]
    assert received == [(1, f"read {A}", 0.006, "e"), (2, f"share {B}", 0.024, "e")]
    assert {(e["name"], e["cat"]) for e in [*begins, *ends]} == {("transfer", "transfer")}


def test_a_transfer_of_which_one_end_is_recorded_has_no_flow() -> None:
    assert events("s") == events("f") == []


def test_file_of_an_empty_timeline_is_valid() -> None:
    assert document(TimelineIndex(Timeline((), ())), []) == []
