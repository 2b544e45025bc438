"""Removal of nodes that a step does not need: those outside its feeds and fetches, and dead code.

Partial execution follows the TensorFlow whitepaper 2016, section 4.2.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from runner.engine.compile.passes.rewriting import Rewrite, Roots, needed_by
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor

EFFECTS = frozenset({"assign", "send", "recv", "collective_sum"})
"""Ops that have an effect besides their outputs, or that another device waits for."""


def feed_node_name(tensor: Tensor) -> str:
    """Return the name of the placeholder that stands for a fed tensor in a pruned graph."""
    return f"feed/{tensor.node}_{tensor.port}"


def prune(
    graph: Graph, fetches: Sequence[Tensor], targets: Sequence[str] = (), feeds: Sequence[Tensor] = ()
) -> tuple[Graph, dict[Tensor, Tensor]]:
    """Return the part of ``graph`` that fetches and targets need if feeds are given, and the new place of each feed.

    Any tensor may be fed: its readers then read a placeholder, and nodes that only it needed are dropped. An assign
    still names its variable if the variable is fed. The second result maps every fed tensor to the output of its
    placeholder. Raises ShapeError for unknown names and for a placeholder that is needed but not fed.
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
            pruned.insert(_without_dropped_partners(needed[name], needed))
    return pruned, moved


def remove_dead_code(graph: Graph, roots: Roots) -> Rewrite:
    """Return the part of the graph that fetches, targets and nodes with an effect need; no tensor moves."""
    needed = {tensor.node for tensor in roots.fetches} | roots.targets
    for node in reversed(list(graph)):
        if node.name in needed or node.op in EFFECTS:
            needed.add(node.name)
            needed.update(needed_by(node))
    result = Graph()
    for node in graph:
        if node.name in needed:
            result.insert(_without_dropped_partners(node, needed))
    return result, {}


def _without_dropped_partners(node: Node, needed: Collection[str]) -> Node:
    """Return the node colocated with needed nodes only: colocation is no reason to run a node."""
    kept = tuple(name for name in node.colocate_with if name in needed)
    return node if kept == node.colocate_with else replace(node, colocate_with=kept)


def _needed(graph: Graph, moved: Mapping[Tensor, Tensor], start: set[str]) -> dict[str, Node]:
    """Return the nodes that have to run, by name and with feeds as inputs; other nodes of the graph are not visited."""
    needed: dict[str, Node] = {}
    seen, stack = set(start), sorted(start)
    while stack:
        name = stack.pop()
        node = needed[name] = _rewired(graph, graph.nodes[name], moved)
        if node.op == "placeholder":
            raise ShapeError(
                f"placeholder {node.name!r} is needed but not fed; feed it or a tensor between it and the fetches"
            )
        for before in needed_by(node):
            # The placeholders of feeds are not in the graph.
            if before in graph and before not in seen:
                seen.add(before)
                stack.append(before)
    return needed


def _rewired(graph: Graph, node: Node, moved: Mapping[Tensor, Tensor]) -> Node:
    """Return the node with fed tensors, and control edges from fed placeholders, replaced by those of the feeds."""
    variable = node.inputs[:1] if node.op == "assign" else ()
    inputs = (*variable, *(moved.get(tensor, tensor) for tensor in node.inputs[len(variable) :]))
    controls = tuple(
        moved[Tensor(name)].node if graph.nodes[name].op == "placeholder" and Tensor(name) in moved else name
        for name in node.control_inputs
    )
    return replace(node, inputs=inputs, control_inputs=controls)
