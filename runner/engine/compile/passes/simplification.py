"""Removal of nodes that a step does not need, of identities, and of duplicates of equal nodes.

:func:`prune` implements partial execution (TensorFlow whitepaper 2016, section 4.2). Identities include x * 1, x / 1
and x - 0, which keep every bit of x, but not x + 0, because -0 + 0 is +0.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence

from runner.engine.compile.passes.rewriting import (
    Moved,
    Rewrite,
    Roots,
    Uses,
    colocated_within,
    filled_with,
    needed_part,
    rewired,
)
from runner.engine.graph import Graph, Node, ShapeError, Tensor
from runner.engine.graph import op as op_table

Source = Callable[[Graph, Node], Tensor | None]
"""A function that returns another tensor that equals a node's output; None if there is none."""


def remove_identities(graph: Graph, roots: Roots) -> Rewrite:
    """Return the graph in which no node reads an identity, and the tensors that have moved.

    The graph must already contain its gradients, because ``stop_gradient`` counts as an identity. An assign counts too,
    because its output is the assigned value. Nodes without readers stay in the graph; see :func:`remove_dead_code`.
    """
    result = Graph()
    moved: Moved = {}
    early = Uses(graph, roots).early
    for old in graph:
        node = result.insert(_shortened(result, rewired(old, moved)))
        # A node with control inputs stays, because its readers must wait for these inputs too.
        stays = node.control_inputs or node.name in early
        source = None if stays else _SOURCES.get(node.op)
        tensor = source(result, node) if source else None
        if tensor is not None and result.nodes[tensor.node].device == node.device:
            moved[node[0]] = tensor
    return result, moved


def _shortened(graph: Graph, node: Node) -> Node:
    """Return the node; a reshape of a reshape reads the input of the first, unless the first has control inputs."""
    if node.op == "reshape":
        before = graph.nodes[node.inputs[0].node]
        if before.op == "reshape" and before.device == node.device and not before.control_inputs:
            return node.changed(inputs=before.inputs)
    return node


def _input_of_equal_spec(graph: Graph, node: Node) -> Tensor | None:
    return node.inputs[0] if graph.spec(node.inputs[0]) == node.outputs[0] else None


def _unchanged_by(neutral: float, *, commutes: bool = False) -> Source:
    """Return a ``Source`` that returns an operand of the output's spec if the other operand is the neutral number."""

    def source(graph: Graph, node: Node) -> Tensor | None:
        a, b = node.inputs
        for operand, other in ((a, b), (b, a)) if commutes else ((a, b),):
            value = filled_with(graph, other)
            # Floats are compared by their bits, because 0.0 == -0.0.
            if value is not None and value.hex() == neutral.hex() and graph.spec(operand) == node.outputs[0]:
                return operand
        return None

    return source


_SOURCES: Mapping[str, Source] = {
    "identity": lambda graph, node: node.inputs[0],
    "stop_gradient": lambda graph, node: node.inputs[0],
    "assign": lambda graph, node: node.inputs[1],
    "reshape": _input_of_equal_spec,
    "cast": _input_of_equal_spec,
    "broadcast_to": _input_of_equal_spec,
    "add_n": lambda graph, node: node.inputs[0] if len(node.inputs) == 1 else None,
    "mul": _unchanged_by(1.0, commutes=True),
    "div": _unchanged_by(1.0),
    "sub": _unchanged_by(0.0),
}


def merge_common_subexpressions(graph: Graph, roots: Roots) -> Rewrite:
    """Return the graph with equal nodes merged into the first of them, and the tensors that have moved.

    Nodes are equal if they have the same op, inputs, attributes, device and control inputs. Stateful nodes are never
    merged, and a target keeps its name.
    """
    kept: list[Node] = []
    moved: Moved = {}
    survivor: dict[str, str] = {}
    first: dict[Hashable, Node] = {}
    for old in graph:
        node = _waiting_for(rewired(old, moved), survivor)
        if _mergeable(node) and node.name not in roots.targets:
            known = first.setdefault(_key(node), node)
            if known is not node:
                survivor[node.name] = known.name
                moved.update(zip(node.tensors, known.tensors, strict=True))
                continue
        kept.append(node)
    return Graph.of(kept), moved


def _mergeable(node: Node) -> bool:
    definition = op_table.lookup(node.op)
    return definition.executed_by == "kernel" and not definition.stateful and not node.colocate_with


def _waiting_for(node: Node, survivor: dict[str, str]) -> Node:
    """Return the node with surviving nodes in place of merged nodes in its control inputs and colocation."""
    if survivor.keys().isdisjoint((*node.control_inputs, *node.colocate_with)):
        return node
    controls = dict.fromkeys(survivor.get(name, name) for name in node.control_inputs)
    partners = dict.fromkeys(survivor.get(name, name) for name in node.colocate_with)
    return node.changed(control_inputs=tuple(controls), colocate_with=tuple(partners))


def _key(node: Node) -> Hashable:
    # Floats are compared by their bits, because 0.0 == -0.0.
    exact = ((name, v.hex() if isinstance(v, float) else v) for name, v in sorted(node.attributes.items()))
    return node.op, node.inputs, tuple(exact), node.device, node.control_inputs


EFFECTS = frozenset({"assign", "send", "recv", "collective_sum"})
"""Ops that have an effect besides their outputs, or that another device waits for."""


def feed_node_name(tensor: Tensor) -> str:
    """Return the name of the placeholder that stands for a fed tensor in a pruned graph."""
    return f"feed/{tensor.node}_{tensor.port}"


def prune(
    graph: Graph, fetches: Sequence[Tensor], targets: Sequence[str] = (), feeds: Sequence[Tensor] = ()
) -> tuple[Graph, dict[Tensor, Tensor]]:
    """Return the part of ``graph`` that fetches and targets need, given the feeds, and the placeholder of each feed.

    Any tensor may be fed: its readers then read a placeholder, and nodes that only this tensor needed are dropped. If
    a variable is fed, its assign still refers to the variable. The second result maps every fed tensor to the output of
    its placeholder. Raises ShapeError for unknown names and for a placeholder that is needed but not fed.
    """
    for tensor in (*fetches, *feeds):
        graph.spec(tensor)
    for target in targets:
        if target not in graph:
            raise ShapeError(f"target {target!r} is not in the graph")
    moved = {tensor: Tensor(feed_node_name(tensor)) for tensor in feeds}
    needed = _needed(graph, moved, {t.node for t in fetches if t not in moved} | set(targets))
    kept: list[Node] = []
    for tensor in feeds:
        owner, spec = graph.nodes[tensor.node], graph.spec(tensor)
        attributes = {"shape": spec.shape, "dtype": spec.dtype}
        name = feed_node_name(tensor)
        kept.append(Node(name, "placeholder", (), attributes, (spec,), owner.device, layer=owner.layer))
    kept += [colocated_within(needed[name], needed) for name in graph.nodes if name in needed]
    return Graph.of(kept), moved


def remove_dead_code(graph: Graph, roots: Roots) -> Rewrite:
    """Return the graph of the nodes that fetches, targets and nodes with an effect need; no tensor moves."""
    return needed_part(graph, {tensor.node for tensor in roots.fetches} | roots.targets, EFFECTS), {}


def _needed(graph: Graph, moved: Mapping[Tensor, Tensor], start: set[str]) -> dict[str, Node]:
    """Return the nodes that have to run, by name, with placeholders in place of fed inputs."""
    needed: dict[str, Node] = {}
    seen, stack = set(start), sorted(start)
    while stack:
        name = stack.pop()
        node = needed[name] = _rewired(graph, graph.nodes[name], moved)
        if node.op == "placeholder":
            raise ShapeError(
                f"placeholder {node.name!r} is needed but not fed; feed it or a tensor between it and the fetches"
            )
        for before in node.needed:
            # The placeholders of feeds are not in the graph.
            if before in graph and before not in seen:
                seen.add(before)
                stack.append(before)
    return needed


def _rewired(graph: Graph, node: Node, moved: Mapping[Tensor, Tensor]) -> Node:
    """Return the node with feeds' placeholders in place of fed inputs and of fed placeholders in control inputs."""
    controls = tuple(
        moved[Tensor(name)].node if graph.nodes[name].op == "placeholder" and Tensor(name) in moved else name
        for name in node.control_inputs
    )
    node = rewired(node, moved)
    return node if controls == node.control_inputs else node.changed(control_inputs=controls)
