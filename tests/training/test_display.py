"""The output of a run for its user: progress on the terminal, the table of results, and pictures of its graph."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.commands.train import results_table
from runner.engine.graph import Graph, LayerStamp
from runner.engine.graph.ops.executor import placeholder
from runner.records.summary import Summary
from runner.tracking.diagrams import BETWEEN_COLUMNS, Box, DiagramLegend
from runner.training.display import BarDisplay, Display
from runner.training.graph_picture import draw_graph, write_graph


def test_plain_lines_have_step_loss_rate_and_remaining_time(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(interval_s=0.0)
    display.start(10, 100)
    display.step(20, 0.51234, 1234.5)
    display.close()
    assert "step 20/100  loss 0.5123  1,234 examples/s  ETA " in capsys.readouterr().err
    display.step(30, 1.23456e-7, 0.25)
    assert "step 30/100  loss 1.235e-07  0.25 examples/s  ETA " in capsys.readouterr().err
    rare = Display(interval_s=3600.0)
    rare.start(0, 100)
    for done in range(1, 50):
        rare.step(done, 1.0, 1.0)
    assert capsys.readouterr().err == ""


def test_the_bar_has_no_loss_and_no_rate_before_the_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    display = BarDisplay()
    display.start(0, 7)
    display.close()
    before = capsys.readouterr().err
    assert "0/7" in before
    assert not re.search("nan|loss|examples/s", before)
    display = BarDisplay()
    display.start(0, 7)
    display.step(1, 43210.9, 64.0)
    display.close()
    assert "1/7" in (after := capsys.readouterr().err)
    assert "loss 4.321e+04  64 examples/s" in after


@pytest.mark.parametrize("display", [Display, BarDisplay])
def test_messages_are_shown_unchanged(display: type[Display], capsys: pytest.CaptureFixture[str]) -> None:
    display().message("stopped early after step 3: val/loss [best] [/done]")
    assert capsys.readouterr().err.strip() == "stopped early after step 3: val/loss [best] [/done]"


def test_the_results_table_has_a_line_for_each_known_fact() -> None:
    summary = replace(
        Summary("r", "finished", "c", "/here", "sync_data", 2, {}, "", ""),
        kernels={"cpu": "numpy"},
        step_time_s={"median": 0.002, "p10": 0.001, "p90": 0.004},
        final={"test/accuracy": 0.97},
        best={"test/accuracy": 0.98},
        headline={"test/accuracy": 0.97},
        evaluations=30,
        bytes_sent_per_worker=[2**20, 3 * 2**20],
    )

    def facts(**changes: object) -> dict[str, str]:
        lines = results_table(replace(summary, **changes)).splitlines()  # type: ignore[arg-type]
        return {name.strip(): value.strip() for name, value in (line.split("  ", 1) for line in lines)}

    values = facts()
    assert values["test/accuracy"] == "0.97  (best of 30 evaluations on the test split: 0.98)"
    kept = {"monitor": "val/loss", "best_value": 0.5, "best_checkpoint": "checkpoints/step-3"}
    values_of_best = facts(**kept, headline={"test/accuracy": 0.96})
    assert values_of_best["test/accuracy"] == "0.96  (best checkpoint; at the end 0.97)"
    best = "checkpoints/step-3, val/loss 0.5, best of 30 evaluations on the val split"
    assert values_of_best["best checkpoint"] == best
    assert values["step time"] == "median 2.00 ms, p10 1.00 ms, p90 4.00 ms"
    assert values["MiB sent per worker"] == "1.0, 3.0"
    assert values["run directory"] == "/here"
    assert values.keys().isdisjoint({"MiB sent per server", "network"})
    assert facts(emulated="100 Mbit/s, 1 ms")["network"] == "emulated: 100 Mbit/s, 1 ms"
    servers = facts(bytes_sent_per_worker=[2**20, 3 * 2**20, 5 * 2**20])
    assert (servers["MiB sent per worker"], servers["MiB sent per server"]) == ("1.0, 3.0", "5.0")


FINAL = {"val/accuracy": 0.6, "test/accuracy": 0.71, "test/loss": 0.512345, "train/loss": 1.5e-7}
BEST = {"val/accuracy": 0.8, "test/accuracy": 0.72, "test/loss": 0.512349}


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {},
            {
                "val/accuracy": "0.6  (best of 3 evaluations on the val split: 0.8)",
                "test/accuracy": "0.71  (best of 3 evaluations on the test split: 0.72)",
                "test/loss": "0.5123",
                "train/loss": "1.5e-07",
            },
        ),
        (
            {"headline": BEST | {"test/accuracy": 0.7}, "monitor": "val/accuracy", "best_value": 0.8},
            {
                "val/accuracy": "0.8  (best checkpoint; at the end 0.6)",
                "test/accuracy": "0.7  (best checkpoint; at the end 0.71)",
                "test/loss": "0.5123",
                "train/loss": "1.5e-07  (at the end)",
                "best checkpoint": "checkpoints/step-2, val/accuracy 0.8, best of 3 evaluations on the val split",
            },
        ),
        (
            {"headline": FINAL, "monitor": "train/loss", "best_value": 1.5e-7, "evaluations": 1},
            {"best checkpoint": "checkpoints/step-2, train/loss 1.5e-07, best of 1 evaluation"},
        ),
    ],
    ids=["last", "best checkpoint", "best training loss"],
)
def test_the_headline_is_the_value_of_the_kept_network(changes: dict[str, Any], lines: dict[str, str]) -> None:
    summary = Summary("r", "finished", "c", "/here", "single", 1, {}, "", "", final=FINAL, best=BEST, evaluations=3)
    kept = {"best_checkpoint": "checkpoints/step-2"} if changes else {"headline": FINAL}
    table = results_table(replace(summary, **kept, **changes))  # type: ignore[arg-type]
    found = dict(line.split("  ", 1) for line in table.splitlines())
    assert {name: found[name].strip() for name in lines} == lines


FIRST = LayerStamp("first", "dense")
WORKERS = ("/job:worker/task:0/device:cpu:0", "/job:worker/task:1/device:cpu:0")


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """Hide Graphviz; return a graph of two layers, the first on two devices, and a node that belongs to no layer."""
    monkeypatch.setenv("PATH", str(tmp_path))
    graph = Graph()
    with graph.device(WORKERS[0]):
        x = placeholder(graph, (2,), "float32")
        with graph.layer(FIRST):
            a = graph.add("relu", [x])
            b = graph.add("relu", [a[0]])
        with graph.layer(LayerStamp("second", "dense")):
            c = graph.add("add", [a[0], b[0]])
    with graph.device(WORKERS[1]), graph.layer(FIRST):
        graph.add("relu", [c[0]])
    return graph


def test_a_graph_has_a_box_for_each_layer_and_device_and_an_arrow_for_tensors(graph: Graph, tmp_path: Path) -> None:
    text = write_graph(graph, tmp_path / "graph.dot").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["graph.dot"]
    expected = ('\t\tbox0 [label="step\n1 nodes"]', '\t\tbox1 [label="first\n2 nodes"]')
    assert all(each in text for each in (*expected, "box0 -> box1 [label=1]", "box1 -> box2 [label=2]"))
    assert f'box2 -> box3 [label=1 color="{BETWEEN_COLUMNS}"]' in text, "the tensor changes its device"
    assert 'label="box: layer and its number of nodes; ' in text
    assert text.count("subgraph") == 2


def test_a_picture_without_graphviz_omits_steps(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert draw_graph(graph, tmp_path / "graph.dot") == [tmp_path / "graph.png"]
    assert (tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG")
    drawn: list[dict[tuple[Box, Box], str]] = []

    def draw(boxes: dict[Box, str], arrows: dict[tuple[Box, Box], str], legend: DiagramLegend, path: Path) -> Path:
        drawn.append(arrows)
        return path

    monkeypatch.setattr("runner.training.graph_picture.box_diagram", draw)
    draw_graph(graph, tmp_path / "graph.dot")
    first, second = ("first", WORKERS[0]), ("second", WORKERS[0])
    assert drawn == [{(first, second): "2", (second, ("first", WORKERS[1])): "1"}]


def test_a_failure_of_graphviz_is_logged(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dot = tmp_path / "dot"
    dot.write_text("#!/bin/sh\necho no plugins >&2\nexit 1\n")
    dot.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert draw_graph(graph, tmp_path / "graph.dot") == [tmp_path / "graph.png"]
    assert "graph.svg is not drawn, because Graphviz failed: no plugins" in caplog.text
