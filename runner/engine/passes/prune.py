"""Partial execution: cut a graph down to what a set of feeds and fetches needs (whitepaper 2016, section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    Any tensor may be fed: its readers then read a placeholder, and what only it needed is dropped. An assign
    still names its variable when that is fed. The second result maps every fed tensor to that placeholder's
    output. Raises ShapeError for unknown names and for a placeholder that is needed but not fed.
    """
    for tensor in (*fetches, *feeds):
        graph.spec(tensor)
    for target in targets:
        if target not in graph:
            raise ShapeError(f"target {target!r} is not in the graph")
    moved = {tensor: Tensor(feed_node_name(tensor)) for tensor in feeds}
    needed = _needed(graph, moved, {t.node for t in fetches if t not in moved} | set(targets))
    pruned = Graph()
    for tensor in feeds:
        owner, spec = graph.nodes[tensor.node], graph.spec(tensor)
        attributes = {"shape": spec.shape, "dtype": spec.dtype}
        name = feed_node_name(tensor)
        pruned.insert(Node(name, "placeholder", (), attributes, (spec,), owner.device, layer=owner.layer))
    for name in graph.nodes:
        if name in needed:
            # A colocation partner is no reason to run a node; it is dropped where nothing else needs it.
            kept = tuple(partner for partner in needed[name].colocate_with if partner in needed)
            pruned.insert(replace(needed[name], colocate_with=kept))
    return pruned, moved


def _needed(graph: Graph, moved: Mapping[Tensor, Tensor], start: set[str]) -> dict[str, Node]:
    """The nodes that have to run, by name, rewired; only they are looked at, however large the graph is."""
    needed: dict[str, Node] = {}
    seen, stack = set(start), sorted(start)
    while stack:
        name = stack.pop()
        node = needed[name] = _rewired(graph, graph.nodes[name], moved)
        if node.op == "placeholder":
            raise ShapeError(
                f"placeholder {node.name!r} is needed but not fed; feed it or a tensor between it and the fetches"
            )
        for before in (*(t.node for t in node.inputs), *node.control_inputs):
            # What carries a fed value is not among the graph's own nodes.
            if before in graph and before not in seen:
                seen.add(before)
                stack.append(before)
    return needed


def _rewired(graph: Graph, node: Node, moved: Mapping[Tensor, Tensor]) -> Node:
    """The node with fed tensors, and control edges from fed placeholders, replaced by what carries the value."""
    variable = node.inputs[:1] if node.op == "assign" else ()
    inputs = (*variable, *(moved.get(tensor, tensor) for tensor in node.inputs[len(variable) :]))
    controls = tuple(
        moved[Tensor(name)].node if graph.nodes[name].op == "placeholder" and Tensor(name) in moved else name
        for name in node.control_inputs
    )
    return replace(node, inputs=inputs, control_inputs=controls)
