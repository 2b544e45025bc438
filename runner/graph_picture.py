"""A picture of a training graph, small enough to look at: one box per layer and device."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

from runner.engine.graph import Graph, Node

_Box = tuple[str, str]
_OTHER = "step"


def draw_graph(graph: Graph, path: Path) -> list[Path]:
    """Write ``path`` in Graphviz's language and, where its program is installed, an SVG beside it; return both.

    A box is a layer on a device and says how many nodes it stands for; an arrow, how many tensors flow.
    """
    import graphviz

    boxes: Counter[_Box] = Counter(_box(node) for node in graph)
    arrows: Counter[tuple[_Box, _Box]] = Counter()
    for node in graph:
        for tensor in node.inputs:
            source, target = _box(graph.nodes[tensor.node]), _box(node)
            if source != target:
                arrows[source, target] += 1
    picture = graphviz.Digraph("graph", node_attr={"shape": "box", "style": "rounded"})
    names = {box: f"box{i}" for i, box in enumerate(boxes)}
    for device in dict.fromkeys(device for _, device in boxes):
        with picture.subgraph(name=f"cluster_{device}") as group:
            group.attr(label=device or "any device")
            for (layer, owner), count in boxes.items():
                if owner == device:
                    group.node(names[layer, owner], f"{layer}\n{count} nodes")
    for (source, target), count in arrows.items():
        picture.edge(names[source], names[target], label=str(count))
    path.write_text(picture.source, encoding="utf-8")
    if shutil.which("dot") is None:
        return [path]
    return [path, Path(picture.render(outfile=path.with_suffix(".svg"), cleanup=True))]


def _box(node: Node) -> _Box:
    return (node.layer.name if node.layer else _OTHER, node.device)
