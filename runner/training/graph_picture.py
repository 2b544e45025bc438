"""Pictures of a training graph with one box for each layer and device."""

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node
from runner.tracking.plots import BETWEEN_COLUMNS, DiagramLegend, box_diagram

if TYPE_CHECKING:
    from graphviz import Digraph

_Box = tuple[str, str]
"""(layer, device)."""
_OTHER = "step"
_LEGEND = DiagramLegend(
    box="layer and its number of nodes; step: nodes without a layer",
    within="number of tensors between layers of one device",
    between="number of tensors between layers of different devices",
)


def draw_graph(graph: Graph, path: Path, pictures: bool = True) -> list[Path]:
    """Write the graph to ``path`` in the DOT language, to a PNG file and, if Graphviz is installed, to an SVG file.

    A box is a layer on a device and shows its number of nodes; an arrow shows its number of tensors, and the colour
    of an arrow shows whether its tensors go to another device. A legend explains boxes and arrows. The PNG omits arrows
    to and from nodes without a layer, because these arrows are alike in all networks. pictures: False to omit PNG and
    SVG. Returns the paths of the files.
    """
    boxes = {box: f"{box[0]}\n{count} nodes" for box, count in Counter(map(_box, graph)).items()}
    flows = Counter((_box(graph.nodes[tensor.node]), _box(node)) for node in graph for tensor in node.inputs)
    arrows = {ends: str(count) for ends, count in flows.items() if ends[0] != ends[1]}
    described = _in_graphviz(boxes, arrows)
    path.write_text(described.source, encoding="utf-8")
    if not pictures:
        return [path]
    svg = [Path(described.render(outfile=path.with_suffix(".svg"), cleanup=True))] if shutil.which("dot") else []
    between = {ends: count for ends, count in arrows.items() if _OTHER not in (ends[0][0], ends[1][0])}
    return [path, *svg, box_diagram(boxes, between, _LEGEND, path.with_suffix(".png"))]


def _box(node: Node) -> _Box:
    return (node.layer.name if node.layer else _OTHER, node.device or "any device")


def _in_graphviz(boxes: Mapping[_Box, str], arrows: Mapping[tuple[_Box, _Box], str]) -> "Digraph":
    import graphviz

    picture = graphviz.Digraph("graph", node_attr={"shape": "box", "style": "rounded"})
    picture.attr(label=f"box: {_LEGEND.box}\narrow: number of tensors; coloured: to another device")
    names = {box: f"box{i}" for i, box in enumerate(boxes)}
    for device in dict.fromkeys(device for _, device in boxes):
        with picture.subgraph(name=f"cluster_{device}") as group:
            group.attr(label=device)
            for box, text in boxes.items():
                if box[1] == device:
                    group.node(names[box], text)
    for (source, target), count in arrows.items():
        colour = {} if source[1] == target[1] else {"color": BETWEEN_COLUMNS}
        picture.edge(names[source], names[target], label=count, **colour)
    return picture
