"""Sums over critical paths, and the table of them."""

from __future__ import annotations

import re
from dataclasses import replace

from runner.engine.timeline import Timeline
from runner.tracing.summary import summary_table, trace_summary
from tests.tracing.spans import ALONE, B_WAITS_FOR_A, span

SECOND = [replace(each, step=1) for each in ALONE]
SUMMARY = trace_summary(Timeline((*SECOND, *B_WAITS_FOR_A), ()))


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
        "waited": [{"who": "worker-1", "for": "worker-0", "times": 1, "ns": 11}],
    }
    assert (second["step"], second["ns"], second["waited"]) == (1, 8, [])
    assert second["critical_path_ns"]["by_kind"] == {"input": 1, "compute": 5, "other": 2}


def test_every_node_that_computes_has_its_median() -> None:
    spans = [replace(span("a", "compute", 10 * k, 10 * k + ns), node="y") for k, ns in enumerate((5, 1, 3, 8))]
    other = [span("b", "send", 0, 9, "k"), span("b", "compute", 1, 3)]
    assert trace_summary(Timeline((*spans, *other), ()))["node_ns"] == {"1-3": 2, "y": 4}


def test_the_table_has_shares_of_all_steps_and_a_line_of_each() -> None:
    lines = summary_table(SUMMARY).splitlines()
    assert lines[0] == "critical path of 2 step(s), ms per step, share"
    assert re.fullmatch(r"  kind +compute +0\.000 +71\.4%", lines[1])
    assert lines[-2:] == [
        "step 0: 0.000 ms; waited: worker-1 for worker-0 0.000 (1x)",
        "step 1: 0.000 ms; waited: nobody",
    ]


def test_many_layers_are_cut_and_the_rest_is_summed() -> None:
    spans = [replace(span("a", "compute", 10 * k, 10 * k + 10), layer=f"fc{k:02}") for k in range(10)]
    lines = summary_table(trace_summary(Timeline(tuple(spans), ()))).splitlines()
    layers = [line.split() for line in lines if line.startswith("  layer")]
    assert [line[1] for line in layers[:-1]] == [f"fc{k:02}" for k in range(8)]
    assert (layers[-1][1:3], layers[-1][-1]) == (["2", "more"], "20.0%")


def test_nothing_recorded_is_said() -> None:
    assert summary_table(trace_summary(Timeline((), ()))) == "no step was recorded"
