"""Pictures of a graph: one box for each layer and device, with or without the program of Graphviz."""

from pathlib import Path

import pytest

from runner.engine.graph.graph import Graph
from runner.engine.graph.ops.executor import placeholder
from runner.engine.graph.tensor import LayerStamp
from runner.tracking.plots import Box
from runner.training.graph_picture import draw_graph

FIRST = LayerStamp("first", "dense")


@pytest.fixture
def graph() -> Graph:
    """Two layers on one device, the first also on another, and a node of no layer."""
    graph = Graph()
    with graph.device("/job:worker/task:0/device:cpu:0"):
        x = placeholder(graph, (2,), "float32")
        with graph.layer(FIRST):
            a = graph.add("relu", [x])
            b = graph.add("relu", [a[0]])
        with graph.layer(LayerStamp("second", "dense")):
            c = graph.add("add", [a[0], b[0]])
    with graph.device("/job:worker/task:1/device:cpu:0"), graph.layer(FIRST):
        graph.add("relu", [c[0]])
    return graph


def test_a_picture_needs_no_program(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert draw_graph(graph, tmp_path / "graph.dot") == [tmp_path / "graph.dot", tmp_path / "graph.png"]
    assert (tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG")


def test_without_pictures_the_text_is_left(graph: Graph, tmp_path: Path) -> None:
    assert draw_graph(graph, tmp_path / "graph.dot", pictures=False) == [tmp_path / "graph.dot"]
    assert [path.name for path in tmp_path.iterdir()] == ["graph.dot"]


def test_boxes_say_their_nodes_and_arrows_their_tensors(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    draw_graph(graph, tmp_path / "graph.dot")
    text = (tmp_path / "graph.dot").read_text()
    assert '\t\tbox0 [label="step\n1 nodes"]' in text
    assert '\t\tbox1 [label="first\n2 nodes"]' in text
    assert "box0 -> box1 [label=1]" in text
    assert "box1 -> box2 [label=2]" in text
    assert "box2 -> box3 [label=1]" in text
    assert text.count("subgraph") == 2


def test_the_png_omits_tensors_between_the_step_and_every_layer(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    drawn: list[dict[tuple[Box, Box], str]] = []

    def draw(boxes: dict[Box, str], arrows: dict[tuple[Box, Box], str], path: Path) -> Path:
        drawn.append(arrows)
        return path

    monkeypatch.setattr("runner.training.graph_picture.box_diagram", draw)
    draw_graph(graph, tmp_path / "graph.dot")
    first, second = ("first", "/job:worker/task:0/device:cpu:0"), ("second", "/job:worker/task:0/device:cpu:0")
    assert drawn == [{(first, second): "2", (second, ("first", "/job:worker/task:1/device:cpu:0")): "1"}]
