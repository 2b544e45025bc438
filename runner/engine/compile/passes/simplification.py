"""Simplifications: nodes whose output equals their input, and nodes that compute the same op of the same inputs.

Readers of an identity read its input. x * 1, x / 1 and x - 0 keep every bit of x; x + 0 does not, because -0 + 0 is +0.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

from runner.engine.compile.passes.rewriting import Moved, Rewrite, Roots, rewired
from runner.engine.graph import op as op_table
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


def merge_common_subexpressions(graph: Graph, roots: Roots) -> Rewrite:
    """Return the graph with equal nodes merged into the first of them, and the tensors that have moved.

    Nodes are equal if they have the same op, inputs, attributes, device and control inputs. Stateful nodes are never
    merged, and a target keeps its name.
    """
    result = Graph()
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
        result.insert(node)
    return result, moved


def _mergeable(node: Node) -> bool:
    definition = op_table.lookup(node.op)
    return definition.executed_by == "kernel" and not definition.stateful and not node.colocate_with


def _waiting_for(node: Node, survivor: dict[str, str]) -> Node:
    """Return the node with merged nodes replaced in its control inputs and colocation."""
    if survivor.keys().isdisjoint((*node.control_inputs, *node.colocate_with)):
        return node
    controls = dict.fromkeys(survivor.get(name, name) for name in node.control_inputs)
    partners = dict.fromkeys(survivor.get(name, name) for name in node.colocate_with)
    return replace(node, control_inputs=tuple(controls), colocate_with=tuple(partners))


def _key(node: Node) -> Hashable:
    attributes = tuple((name, _exact(value)) for name, value in sorted(node.attributes.items()))
    return node.op, node.inputs, attributes, node.device, node.control_inputs


def _exact(value: Any) -> Hashable:
    """Return a float by its bits: 0.0 and -0.0 are equal, but not the same."""
    return value.hex() if isinstance(value, float) else value
