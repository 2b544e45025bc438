"""The training graph with one box for each layer and device, in the DOT language and as pictures."""

import logging
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from runner.engine.graph import Graph, Node
from runner.tracking.diagrams import BETWEEN_COLUMNS, DiagramLegend, box_diagram

log = logging.getLogger(__name__)

_Box = tuple[str, str]  # (layer, device)
_OTHER = "step"
_LEGEND = DiagramLegend(
    box="layer and its number of nodes; step: nodes without a layer",
    within="number of inputs between layers of one device",
    between="number of inputs between layers of different devices",
)


def write_graph(graph: Graph, path: Path) -> Path:
    """Write the graph to ``path`` in the DOT language, and return ``path``.

    A box is a layer on a device, labelled with its number of nodes. An arrow is labelled with the number of node inputs
    that it feeds, and coloured if it leads to another device. A legend explains boxes and arrows.
    """
    path.write_text("\n".join(_dot_lines(*_boxes_and_arrows(graph))) + "\n", encoding="utf-8")
    return path


def draw_graph(graph: Graph, path: Path) -> list[Path]:
    """Draw the graph as a PNG file and, if Graphviz is installed, as an SVG file, next to the DOT file ``path``.

    The DOT file must exist (:func:`write_graph`). The PNG omits arrows to and from nodes without a layer, which all
    networks have.
    """
    boxes, arrows = _boxes_and_arrows(graph)
    svg, dot, drawn = path.with_suffix(".svg"), shutil.which("dot"), False
    if dot is not None:
        ended = subprocess.run([dot, "-Tsvg", "-o", svg, path], capture_output=True, text=True, check=False)
        drawn = ended.returncode == 0
        if not drawn:
            log.warning("%s is not drawn, because Graphviz failed: %s", svg, ended.stderr.strip())
    between = {ends: count for ends, count in arrows.items() if _OTHER not in (ends[0][0], ends[1][0])}
    return [*([svg] if drawn else []), box_diagram(boxes, between, _LEGEND, path.with_suffix(".png"))]


def _boxes_and_arrows(graph: Graph) -> tuple[dict[_Box, str], dict[tuple[_Box, _Box], str]]:
    boxes = {box: f"{box[0]}\n{count} nodes" for box, count in Counter(map(_box, graph)).items()}
    flows = Counter((_box(graph.nodes[tensor.node]), _box(node)) for node in graph for tensor in node.inputs)
    return boxes, {ends: str(count) for ends, count in flows.items() if ends[0] != ends[1]}


def _box(node: Node) -> _Box:
    return (node.layer.name if node.layer else _OTHER, node.device or "any device")


def _dot_lines(boxes: Mapping[_Box, str], arrows: Mapping[tuple[_Box, _Box], str]) -> Iterator[str]:
    yield 'digraph "graph" {'
    yield "\tnode [shape=box style=rounded]"
    yield f'\tlabel="box: {_LEGEND.box}\narrow: number of inputs; coloured: to another device"'
    names = {box: f"box{i}" for i, box in enumerate(boxes)}
    for device in dict.fromkeys(device for _, device in boxes):
        yield f'\tsubgraph "cluster_{device}" {{\n\t\tlabel="{device}"'
        yield from (f'\t\t{names[box]} [label="{text}"]' for box, text in boxes.items() if box[1] == device)
        yield "\t}"
    for (source, target), count in arrows.items():
        colour = "" if source[1] == target[1] else f' color="{BETWEEN_COLUMNS}"'
        yield f"\t{names[source]} -> {names[target]} [label={count}{colour}]"
    yield "}"
