"""Partial execution: cut a graph down to what a set of feeds and fetches needs (whitepaper 2016, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.engine.graph import Graph, Node
from runner.engine.op import ShapeError
from runner.engine.tensor import Tensor


def feed_node_name(tensor: Tensor) -> str:
    """Name of the placeholder that stands in for a fed tensor inside a pruned graph."""
    return f"feed/{tensor.node}_{tensor.port}"


def prune(
    graph: Graph, fetches: Sequence[Tensor], targets: Sequence[str] = (), feeds: Sequence[Tensor] = ()
) -> tuple[Graph, dict[Tensor, Tensor]]:
    """Return the part of ``graph`` that fetches and targets need when feeds are given, and where tensors went.

    Any tensor may be fed: its readers then read a placeholder, and what only it needed is dropped. The second
    result maps every fed tensor to that placeholder's output. Raises ShapeError for unknown names and for a
    placeholder that is needed but not fed.
    """
    for tensor in (*fetches, *feeds):
        graph.spec(tensor)
    for target in targets:
        if target not in graph:
            raise ShapeError(f"target {target!r} is not in the graph")
    moved = {tensor: Tensor(feed_node_name(tensor)) for tensor in feeds}
    needed = _needed(graph, {t.node for t in fetches if t not in moved} | set(targets), moved)
    pruned = Graph()
    for tensor in feeds:
        owner, spec = graph.nodes[tensor.node], graph.spec(tensor)
        attributes = {"shape": spec.shape, "dtype": spec.dtype}
        name = feed_node_name(tensor)
        pruned.insert(Node(name, "placeholder", (), attributes, (spec,), owner.device, layer=owner.layer))
    for node in graph:
        if node.name in needed:
            pruned.insert(_rewired(node, moved, needed))
    return pruned, moved


def _needed(graph: Graph, start: set[str], moved: dict[Tensor, Tensor]) -> set[str]:
    needed, stack = set(start), sorted(start)
    while stack:
        node = graph.nodes[stack.pop()]
        if node.op == "placeholder":
            raise ShapeError(
                f"placeholder {node.name!r} is needed but not fed; feed it or a tensor between it and the fetches"
            )
        # A colocation partner is no reason to run a node; it is dropped where nothing else needs it.
        for name in (*(t.node for t in node.inputs if t not in moved), *node.control_inputs):
            if name not in needed:
                needed.add(name)
                stack.append(name)
    return needed


def _rewired(node: Node, moved: dict[Tensor, Tensor], needed: set[str]) -> Node:
    return replace(
        node,
        inputs=tuple(moved.get(tensor, tensor) for tensor in node.inputs),
        colocate_with=tuple(name for name in node.colocate_with if name in needed),
    )
