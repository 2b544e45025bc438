"""Gradients, computed by nodes that extend the graph (TensorFlow whitepaper 2016, section 4.1).

``gradients`` walks back from the ys to the xs and adds the gradient nodes of each op's rule. If several paths lead to a
tensor, their gradients are summed. The new nodes can be differentiated again, placed and fetched like other nodes.
"""

from collections.abc import Collection, Sequence
from itertools import count

from runner.engine.graph import op as op_table
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node
from runner.engine.graph.op import ByDecomposition, NotDifferentiable, ShapeError
from runner.engine.graph.tensor import Tensor


def gradients(
    graph: Graph,
    ys: Sequence[Tensor],
    xs: Sequence[Tensor],
    grad_ys: Sequence[Tensor] | None = None,
    *,
    scope: str = "gradients",
    stop: Collection[Tensor] = (),
) -> list[Tensor | None]:
    """Add nodes for d(sum of <grad_y, y>)/dx; return one tensor per x, or None for an x that no y depends on.

    ys, xs: any float tensors of the graph. grad_ys: the gradient of each y, of y's shape and dtype; ones by default.
    stop: tensors whose nodes pass no gradient on to their inputs; such a tensor can be an x.
    Gradient nodes have the device constraint and the layer of their forward nodes. Raises ShapeError if a path to
    an x passes through an op that is declared not differentiable.
    """
    arrived: dict[Tensor, list[Tensor]] = {}
    with graph.absolute_scope(_new_scope(graph, scope)), graph.backward():
        for y, gradient in zip(ys, _seeds(graph, ys, grad_ys), strict=True):
            arrived.setdefault(y, []).append(gradient)
        on_path = _nodes_on_path(graph, ys, xs)
        targets, ends = set(xs), {tensor.node for tensor in stop}
        for node in reversed([graph.nodes[name] for name in on_path]):
            # The outputs' gradients are complete: this reverse walk has already visited all consumers.
            totals = [_total(graph, arrived, tensor) for tensor in node.tensors]
            wanted = [tensor in targets or tensor.node in on_path for tensor in node.inputs]
            if node.name in ends or not any(wanted) or all(total is None for total in totals):
                continue
            with graph.device(node.device), graph.layer(node.layer), graph.name_scope(node.name):
                partials = _input_gradients(graph, node, totals)
            for tensor, partial, is_wanted in zip(node.inputs, partials, wanted, strict=True):
                if is_wanted and partial is not None:
                    _expect_like(graph, node, tensor, partial)
                    arrived.setdefault(tensor, []).append(partial)
        return [_total(graph, arrived, x) for x in xs]


def _seeds(graph: Graph, ys: Sequence[Tensor], grad_ys: Sequence[Tensor] | None) -> list[Tensor]:
    if grad_ys is None:
        return [_ones(graph, y) for y in ys]
    if len(grad_ys) != len(ys):
        raise ShapeError(f"gradients: {len(ys)} ys, but {len(grad_ys)} grad_ys")
    for y, gradient in zip(ys, grad_ys, strict=True):
        if graph.spec(y) != graph.spec(gradient):
            raise ShapeError(f"gradients: grad_y {gradient} is {graph.spec(gradient)}, expected {graph.spec(y)} as {y}")
    return list(grad_ys)


def _ones(graph: Graph, like: Tensor) -> Tensor:
    spec, owner = graph.spec(like), graph.nodes[like.node]
    attributes = {"value": 1.0, "shape": spec.shape, "dtype": spec.dtype}
    with graph.device(owner.device), graph.layer(owner.layer):
        return graph.add("fill", (), attributes, name=f"{like.node}/ones")[0]


def _nodes_on_path(graph: Graph, ys: Sequence[Tensor], xs: Sequence[Tensor]) -> dict[str, None]:
    """Return the names of nodes that depend on an x and that a y depends on, in graph order."""
    for tensor in (*ys, *xs):
        if not graph.spec(tensor).is_float:
            raise ShapeError(f"gradients: {tensor} is {graph.spec(tensor)}; only float tensors have gradients")
    needed = {y.node for y in ys}
    stack = [*needed]
    while stack:
        found = {tensor.node for tensor in graph.nodes[stack.pop()].inputs} - needed
        needed |= found
        stack += found
    forward, on_path = set(xs), dict[str, None]()
    # Visit only the nodes that the ys depend on, because a graph can contain a thousand replicas.
    for name in sorted(needed, key=graph.position):
        node = graph.nodes[name]
        if any(tensor in forward and graph.spec(tensor).is_float for tensor in node.inputs):
            forward.update(node.tensors)
        if not forward.isdisjoint(node.tensors):
            on_path[name] = None
    return on_path


def _expect_like(graph: Graph, node: Node, tensor: Tensor, partial: Tensor) -> None:
    if graph.spec(partial) != graph.spec(tensor):
        raise ShapeError(
            f"gradient rule of op {node.op!r} at node {node.name!r} gave {graph.spec(partial)} "
            f"for input {tensor}, expected {graph.spec(tensor)}"
        )


def _input_gradients(graph: Graph, node: Node, totals: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Return the gradients of a node's inputs, given the gradients of its outputs (None for no gradient)."""
    definition = op_table.lookup(node.op)
    rule = definition.gradient
    if isinstance(rule, NotDifferentiable):
        raise ShapeError(f"no gradient through node {node.name!r} (op {node.op!r}): {rule.reason}")
    if not isinstance(rule, ByDecomposition):
        return rule(graph, node, totals)
    assert definition.decompose is not None, "register() requires the rule"
    # A new identity node replaces each float input, so a tensor that is used as two inputs gets two gradients.
    stand_ins = [
        graph.add("identity", [t], name=f"input_{i}")[0] if graph.spec(t).is_float else t
        for i, t in enumerate(node.inputs)
    ]
    with graph.name_scope("decomposed"):
        outputs = definition.decompose(graph, stand_ins, node.attributes)
    pairs = [(y, g) for y, g in zip(outputs, totals, strict=True) if g is not None]
    floats = [t for t in stand_ins if graph.spec(t).is_float]
    found = gradients(graph, [y for y, _ in pairs], floats, [g for _, g in pairs], scope=f"{node.name}/second")
    gradient_of = dict(zip(floats, found, strict=True))
    return [gradient_of.get(t) for t in stand_ins]


def _total(graph: Graph, arrived: dict[Tensor, list[Tensor]], tensor: Tensor) -> Tensor | None:
    """Sum the gradients that arrived at a tensor, in order of arrival (reverse graph order of its consumers)."""
    parts = arrived.get(tensor)
    if not parts:
        return None
    if len(parts) > 1:
        node = graph.nodes[tensor.node]
        with graph.device(node.device), graph.layer(node.layer):
            arrived[tensor] = [graph.add("add_n", parts, name=f"{tensor.node}/sum_{tensor.port}")[0]]
    return arrived[tensor][0]


def _new_scope(graph: Graph, scope: str) -> str:
    """Return ``scope``, with a number appended if the graph has this scope; a nested scope is returned unchanged."""
    if "/" in scope:
        return scope
    taken = {name.split("/")[0] for name in graph.nodes}
    if scope not in taken:
        return scope
    return next(name for number in count(1) if (name := f"{scope}_{number}") not in taken)
