"""Batch normalisation with the ReLU that follows it, forward and backward."""

from __future__ import annotations

from runner.engine.graph import Graph, Node
from runner.engine.passes.rewriting import Moved, Rewrite, Roots, Uses, exchange, merged
from runner.engine.tensor import Tensor, TensorSpec

_MASK = 3
"""Port of batch_norm_relu that says where y > 0."""


def fuse_normalization_and_relu(graph: Graph, roots: Roots) -> Rewrite:
    """Return the graph with batch_norm and relu fused, and with their gradients fused; and where statistics went.

    batch_norm_relu has the name of the relu and stands where the batch_norm stood. Its mask takes the place of y in
    the gradient: relu_gradient and batch_norm_gradient become batch_norm_relu_gradient, under the name of the latter.
    """
    uses = Uses(graph, roots)
    exchanged: dict[str, Node | None] = {}
    moved: Moved = {}
    fused: set[str] = set()
    for node in graph:
        relu = _relu_after(uses, node)
        if relu is not None:
            exchanged[node.name], exchanged[relu.name] = _forward(node, relu), None
            moved.update({node[port]: Tensor(relu.name, port) for port in (1, 2)})
            fused.add(relu.name)
        gate = _gate_before(uses, node)
        if gate is not None and gate.inputs[1].node in fused:
            exchanged[gate.name], exchanged[node.name] = None, _backward(gate, node)
    return exchange(graph, exchanged, moved), moved


def _relu_after(uses: Uses, node: Node) -> Node | None:
    """The relu that alone reads what a batch_norm normalises, where it waits for nothing later."""
    relu = uses.sole_reader(node) if node.op == "batch_norm" else None
    if relu is None or relu.op != "relu":
        return None
    waits = any(uses.position[name] > uses.position[node.name] for name in relu.control_inputs)
    return None if waits else relu


def _gate_before(uses: Uses, node: Node) -> Node | None:
    """The relu_gradient whose result a batch_norm_gradient alone reads, as dy."""
    if node.op != "batch_norm_gradient":
        return None
    *others, dy = node.inputs
    gate = uses.graph.nodes[dy.node]
    fits = gate.op == "relu_gradient" and uses.sole_reader(gate) is node and dy not in others
    return gate if fits else None


def _forward(node: Node, relu: Node) -> Node:
    (y, *statistics) = node.outputs
    outputs = (y, *statistics, TensorSpec(y.shape, "bool"))
    return merged((node, relu), relu.name, "batch_norm_relu", node.inputs, node.attributes, outputs)


def _backward(gate: Node, node: Node) -> Node:
    dy, y = gate.inputs
    inputs = (*node.inputs[:4], Tensor(y.node, _MASK), dy)
    return merged((node, gate), node.name, "batch_norm_relu_gradient", inputs, node.attributes, node.outputs)
