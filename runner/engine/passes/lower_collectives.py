"""Sums over workers become those of a library between cards, where the cluster has one.

Before, every device reads the parts of all and sums them itself (op ``all_reduce``). Afterwards each gives its own part
and is given the sum (op ``collective_sum``): no edge between devices is left of it.

The library wants all devices to begin their sums in one order, and a device that waits for one of them can do nothing
else meanwhile, such as sending what another waits for before it begins that sum. So the sums of a device are in one
order, that of their groups, which control edges keep; and where nodes get the order in which they run, those of a group
stand next to each other (:func:`gathered`). The orders of the devices are slices of that one order. By induction over
it nobody waits forever.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from runner.engine.graph import Graph, Node
from runner.engine.op import ShapeError
from runner.engine.passes.rewriting import Rewrite, Roots, needed_by

WHOLE, LOWERED = "all_reduce", "collective_sum"


def lower_collectives(graph: Graph, roots: Roots, members: Sequence[str]) -> Rewrite:
    """Return a placed graph in which sums over ``members`` are those of a library; tensors stay where they are.

    members: the devices that have it, in the order of their ranks. A group is lowered where all of them have its sum,
    each of the same parts, of which its own lies on it; another, such as one of which a step needs the sum on one
    device alone, is left as it is.
    """
    lowered = {node.name: _lowered(node) for group in _complete_groups(graph, members) for node in group}
    if not lowered:
        return graph, {}
    replaced = Graph()
    for node in graph:
        replaced.insert(lowered.get(node.name, node))
    result = Graph()
    latest: dict[str, str] = {}
    for name in gathered(replaced, list(replaced.nodes)):
        node = replaced.nodes[name]
        if node.op == LOWERED:
            before = latest.get(node.device)
            controls = dict.fromkeys((*node.control_inputs, *((before,) if before is not None else ())))
            node = replace(node, control_inputs=tuple(controls))
            latest[node.device] = name
        result.insert(node)
    return result, {}


def gathered(graph: Graph, order: Sequence[str]) -> list[str]:
    """The names of ``order``, near it, so that nodes come after what they need and groups have nothing between them.

    A group comes when the last of its nodes would. Raises ShapeError where groups wait for each other.
    """
    together = _groups(graph, LOWERED)
    if not together:
        return list(order)
    unit_of = {node.name: nodes[0].name for nodes in together.values() for node in nodes}
    units: dict[str, list[str]] = defaultdict(list)
    last: dict[str, int] = {}
    for position, name in enumerate(order):
        unit = unit_of.get(name, name)
        units[unit].append(name)
        last[unit] = position
    sorted_units = _sorted(graph, units, unit_of, last)
    if len(sorted_units) < len(units):
        stuck = sorted(set(units) - set(sorted_units))
        raise ShapeError(
            f"nodes {', '.join(stuck[:5])}: what a device does after a sum over all devices, another has to do before "
            "its part of that sum; expected sums that all devices can begin together; use another combine than "
            "all_reduce, or cluster.collectives=none"
        )
    return [name for unit in sorted_units for name in units[unit]]


def _sorted(
    graph: Graph, units: Mapping[str, Sequence[str]], unit_of: Mapping[str, str], last: Mapping[str, int]
) -> list[str]:
    """As many units as can be, each after those that it needs, always the first of ``last`` that can come."""
    needed = {
        unit: {unit_of.get(each, each) for name in names for each in needed_by(graph.nodes[name])}
        for unit, names in units.items()
    }
    followers: dict[str, list[str]] = defaultdict(list)
    for unit, before in needed.items():
        for each in before:
            followers[each].append(unit)
    missing = {unit: len(before) for unit, before in needed.items()}
    ready = [(last[unit], unit) for unit, count in missing.items() if count == 0]
    heapq.heapify(ready)
    found = []
    while ready:
        _, unit = heapq.heappop(ready)
        found.append(unit)
        for follower in followers[unit]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, (last[follower], follower))
    return found


def _groups(graph: Graph, op: str) -> dict[str, list[Node]]:
    """The nodes of an op by their group, in the order of the graph."""
    groups: dict[str, list[Node]] = defaultdict(list)
    for node in graph:
        if node.op == op:
            groups[node.attributes["group"]].append(node)
    return groups


def _complete_groups(graph: Graph, members: Sequence[str]) -> list[list[Node]]:
    """Groups of which every member has a node that reads the same parts, its own at its rank; in the order of ranks."""
    found = []
    for nodes in _groups(graph, WHOLE).values():
        ranked = sorted(nodes, key=lambda node: int(node.attributes["rank"]))
        parts = ranked[0].inputs
        devices = [node.device for node in ranked]
        lie_on = [graph.nodes[part.node].device for part in parts]
        alike = all(node.inputs == parts for node in ranked)
        ranks = [node.attributes["rank"] for node in ranked]
        if alike and devices == lie_on == list(members) and ranks == list(range(len(members))):
            found.append(ranked)
    return found


def _lowered(node: Node) -> Node:
    rank = int(node.attributes["rank"])
    attributes = {"group": node.attributes["group"], "rank": rank, "size": len(node.inputs)}
    return replace(node, op=LOWERED, inputs=(node.inputs[rank],), attributes=attributes)
