"""Pictures of a training graph with one box for each layer and device."""

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Node
from runner.tracking.plots import box_diagram

if TYPE_CHECKING:
    from graphviz import Digraph

_Box = tuple[str, str]
_OTHER = "step"


@dataclass(frozen=True)
class _Layers:
    """boxes: text of each (layer, device). arrows: how many tensors flow from one box to another."""

    boxes: dict[_Box, str]
    arrows: Counter[tuple[_Box, _Box]]


def draw_graph(graph: Graph, path: Path, pictures: bool = True) -> list[Path]:
    """Write ``path`` in the language of Graphviz, a PNG and, if the program of Graphviz is installed, an SVG.

    A box is a layer on a device and shows its number of nodes; an arrow shows the number of tensors. The PNG omits the
    tensors between the step itself and each layer, which are the same in all networks. pictures: False omits PNG and
    SVG. Returns the paths of the files.
    """
    layers = _layers_of(graph)
    described = _in_graphviz(layers)
    path.write_text(described.source, encoding="utf-8")
    if not pictures:
        return [path]
    arrows = {
        (source, target): str(count)
        for (source, target), count in layers.arrows.items()
        if _OTHER not in (source[0], target[0])
    }
    return [path, *_rendered(described, path), box_diagram(layers.boxes, arrows, path.with_suffix(".png"))]


def _layers_of(graph: Graph) -> _Layers:
    counts = Counter(_box(node) for node in graph)
    arrows: Counter[tuple[_Box, _Box]] = Counter()
    for node in graph:
        for tensor in node.inputs:
            source, target = _box(graph.nodes[tensor.node]), _box(node)
            if source != target:
                arrows[source, target] += 1
    return _Layers({box: f"{box[0]}\n{count} nodes" for box, count in counts.items()}, arrows)


def _box(node: Node) -> _Box:
    return (node.layer.name if node.layer else _OTHER, node.device or "any device")


def _in_graphviz(layers: _Layers) -> "Digraph":
    import graphviz

    picture = graphviz.Digraph("graph", node_attr={"shape": "box", "style": "rounded"})
    names = {box: f"box{i}" for i, box in enumerate(layers.boxes)}
    for device in dict.fromkeys(device for _, device in layers.boxes):
        with picture.subgraph(name=f"cluster_{device}") as group:
            group.attr(label=device)
            for box, text in layers.boxes.items():
                if box[1] == device:
                    group.node(names[box], text)
    for (source, target), count in layers.arrows.items():
        picture.edge(names[source], names[target], label=str(count))
    return picture


def _rendered(described: "Digraph", path: Path) -> list[Path]:
    if shutil.which("dot") is None:
        return []
    return [Path(described.render(outfile=path.with_suffix(".svg"), cleanup=True))]
