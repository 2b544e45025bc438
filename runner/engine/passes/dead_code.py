"""Nodes that nobody needs are left out."""

from __future__ import annotations

from dataclasses import replace

from runner.engine.graph import Graph, Node
from runner.engine.passes.rewriting import Rewrite, Roots, needed_by

EFFECTS = frozenset({"assign", "send", "recv", "collective_sum"})
"""Ops that are run for what they do to the world, or that others wait for."""


def remove_dead_code(graph: Graph, roots: Roots) -> Rewrite:
    """Return the part of the graph that fetches, targets and nodes with an effect need; nothing moves."""
    needed = {tensor.node for tensor in roots.fetches} | roots.targets
    for node in reversed(list(graph)):
        if node.name in needed or node.op in EFFECTS:
            needed.add(node.name)
            needed.update(needed_by(node))
    result = Graph()
    for node in graph:
        if node.name in needed:
            result.insert(_beside_what_is_left(node, needed))
    return result, {}


def _beside_what_is_left(node: Node, needed: set[str]) -> Node:
    # A colocation partner is no reason to run a node.
    if needed.issuperset(node.colocate_with):
        return node
    return replace(node, colocate_with=tuple(name for name in node.colocate_with if name in needed))
