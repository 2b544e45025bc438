"""Sums over critical paths, and their table."""

import re
from dataclasses import replace

from runner.engine.run.timeline import Timeline
from runner.tracing.summary import summary_table, trace_summary
from runner.tracing.timeline_index import TimelineIndex, Update
from tests.tracing.spans import ALONE, B_WAITS_FOR_A, LAUNCHED, one_run, run, span

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


def test_the_table_has_shares_of_all_steps_and_a_line_of_each() -> None:
    lines = summary_table(SUMMARY).splitlines()
    assert lines[0] == "critical path of 2 step(s), ms per step, share"
    assert re.fullmatch(r"  kind +compute +0\.000 +71\.4%", lines[1])
    assert lines[-4:] == [
        "  worker-0         input 3.6%, compute 57.1%, send 7.1%, idle 32.1%",
        "  worker-1         compute 28.6%, receive 3.6%, wait 39.3%, idle 28.6%",
        "step 0: 0.000 ms; waited: worker-1 for worker-0 0.000 (1x)",
        "step 1: 0.000 ms; waited: no process",
    ]


def test_many_layers_are_cut_and_the_rest_is_summed() -> None:
    spans = [replace(span("a", "compute", 10 * k, 10 * k + 10), layer=f"fc{k:02}") for k in range(10)]
    index, update = one_run(spans)
    lines = summary_table(trace_summary(index, [update])).splitlines()
    layers = [line.split() for line in lines if line.startswith("  layer")]
    assert [line[1] for line in layers[:-1]] == [f"fc{k:02}" for k in range(8)]
    assert (layers[-1][1:3], layers[-1][-1]) == (["2", "more"], "20.0%")


def test_an_empty_recording_is_reported() -> None:
    assert summary_table(trace_summary(TimelineIndex(Timeline((), ())), [])) == "no step was recorded"
