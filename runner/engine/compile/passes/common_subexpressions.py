"""Merging of nodes that compute the same op of the same inputs."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from runner.engine.compile.passes.rewriting import Moved, Rewrite, Roots, rewired
from runner.engine.graph import op as op_table
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node


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
