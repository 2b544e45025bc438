"""Nodes that compute what they read: their readers read the source. Only what is exact in IEEE arithmetic counts.

x * 1, x / 1 and x - 0 keep every bit of x; x + 0 does not, because -0 + 0 is +0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from runner.engine.graph import Graph, Node
from runner.engine.passes.rewriting import Moved, Rewrite, Roots, rewired
from runner.engine.tensor import Tensor

Source = Callable[[Graph, Node], Tensor | None]


def remove_identities(graph: Graph, roots: Roots) -> Rewrite:
    """Return the graph with nobody reading a node that computes what it reads, and where readers went.

    For passes that run after gradients have been taken: ``stop_gradient`` is an identity then. The output of an
    assign is the value assigned. What is not read any more stays until dead code is removed.
    """
    result = Graph()
    moved: Moved = {}
    for old in graph:
        node = result.insert(_shortened(result, rewired(old, moved)))
        source = _SOURCES.get(node.op)
        # Who reads a node that waits for others waits for them too.
        tensor = source(result, node) if source and not node.control_inputs else None
        if tensor is not None and result.nodes[tensor.node].device == node.device:
            moved[node[0]] = tensor
    return result, moved


def _shortened(graph: Graph, node: Node) -> Node:
    """A reshape of a reshape reads what that reads."""
    if node.op == "reshape":
        before = graph.nodes[node.inputs[0].node]
        if before.op == "reshape" and before.device == node.device:
            return replace(node, inputs=before.inputs)
    return node


def _always(graph: Graph, node: Node) -> Tensor | None:
    return node.inputs[0]


def _assigned(graph: Graph, node: Node) -> Tensor | None:
    return node.inputs[1]


def _of_one_spec(graph: Graph, node: Node) -> Tensor | None:
    return node.inputs[0] if graph.spec(node.inputs[0]) == node.outputs[0] else None


def _of_one_term(graph: Graph, node: Node) -> Tensor | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _beside(neutral: float, *, commutes: bool = False) -> Source:
    """The operand beside a fill with the neutral number, where it has the shape of the result."""

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
    "identity": _always,
    "stop_gradient": _always,
    "assign": _assigned,
    "reshape": _of_one_spec,
    "cast": _of_one_spec,
    "broadcast_to": _of_one_spec,
    "add_n": _of_one_term,
    "mul": _beside(1.0, commutes=True),
    "div": _beside(1.0),
    "sub": _beside(0.0),
}
