"""Removal of nodes whose output equals their input bit for bit: their readers read the input.

x * 1, x / 1 and x - 0 keep every bit of x; x + 0 does not, because -0 + 0 is +0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from runner.engine.compile.passes.rewriting import Moved, Rewrite, Roots, rewired
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node
from runner.engine.graph.tensor import Tensor

Source = Callable[[Graph, Node], Tensor | None]
"""The tensor that the output of a node equals; None if there is none."""


def remove_identities(graph: Graph, roots: Roots) -> Rewrite:
    """Return the graph in which no node reads an identity, and the tensors that have moved.

    The graph must contain its gradients, because ``stop_gradient`` counts as an identity. The output of an assign is
    the assigned value. Nodes that have lost their readers stay until dead code is removed.
    """
    result = Graph()
    moved: Moved = {}
    for old in graph:
        node = result.insert(_shortened(result, rewired(old, moved)))
        source = _SOURCES.get(node.op)
        # The readers of a node that waits for others must wait for them too.
        tensor = source(result, node) if source and not node.control_inputs else None
        if tensor is not None and result.nodes[tensor.node].device == node.device:
            moved[node[0]] = tensor
    return result, moved


def _shortened(graph: Graph, node: Node) -> Node:
    """Return the node; a reshape of a reshape reads the first one's input."""
    if node.op == "reshape":
        before = graph.nodes[node.inputs[0].node]
        if before.op == "reshape" and before.device == node.device:
            return replace(node, inputs=before.inputs)
    return node


def _input(graph: Graph, node: Node) -> Tensor | None:
    return node.inputs[0]


def _assigned(graph: Graph, node: Node) -> Tensor | None:
    return node.inputs[1]


def _input_of_equal_spec(graph: Graph, node: Node) -> Tensor | None:
    return node.inputs[0] if graph.spec(node.inputs[0]) == node.outputs[0] else None


def _only_input(graph: Graph, node: Node) -> Tensor | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _unchanged_by(neutral: float, *, commutes: bool = False) -> Source:
    """Return the operand next to a fill with the neutral number, if it has the shape of the result."""

    def source(graph: Graph, node: Node) -> Tensor | None:
        a, b = node.inputs
        for operand, other in ((a, b), (b, a)) if commutes else ((a, b),):
            if _is_fill_of(graph, other, neutral) and graph.spec(operand) == node.outputs[0]:
                return operand
        return None

    return source


def _is_fill_of(graph: Graph, tensor: Tensor, number: float) -> bool:
    node = graph.nodes[tensor.node]
    if node.op != "fill":
        return False
    value = node.attributes["value"]
    return bool(value == number and math.copysign(1.0, value) == math.copysign(1.0, number))


_SOURCES: Mapping[str, Source] = {
    "identity": _input,
    "stop_gradient": _input,
    "assign": _assigned,
    "reshape": _input_of_equal_spec,
    "cast": _input_of_equal_spec,
    "broadcast_to": _input_of_equal_spec,
    "add_n": _only_input,
    "mul": _unchanged_by(1.0, commutes=True),
    "div": _unchanged_by(1.0),
    "sub": _unchanged_by(0.0),
}
