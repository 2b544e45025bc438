"""Sums over workers as collective operations between GPUs, if the cluster uses a library such as NCCL.

Before this pass, every device reads the parts of all devices and adds them (op ``all_reduce``). Afterwards, each device
passes its own part to the library and receives the sum (op ``collective_sum``); these sums need no other transfers.

The nodes that compute the same sum on all devices form a group. The library requires all devices to start their sums
in the same order. A device that waits for a sum cannot do anything else, not even send a tensor that another device
needs before this sum. So control edges fix the same order of groups on all devices, and the nodes of a group are
adjacent in the global order of execution (:func:`gathered`). The order of each device is a subsequence of this global
order. By induction over the global order, no device waits forever.
"""

from collections import defaultdict
from collections.abc import Sequence

from runner.engine.compile.passes.rewriting import Rewrite, Roots, sorted_by_need
from runner.engine.graph import Graph, Node, ShapeError

WHOLE, LOWERED = "all_reduce", "collective_sum"


def lower_collectives(graph: Graph, roots: Roots, members: Sequence[str]) -> Rewrite:
    """Return a placed graph in which sums over ``members`` are collective operations; no tensor moves.

    members: the devices with the library, in the order of their ranks. A group is lowered if every member computes the
    sum of the same parts, and part k is on member k. Other groups, such as a sum that a step needs on one device
    only, do not change.
    """
    lowered = {node.name: _lowered(node) for group in _complete_groups(graph, members) for node in group}
    if not lowered:
        return graph, {}
    replaced = Graph.of(lowered.get(node.name, node) for node in graph)
    result: list[Node] = []
    latest: dict[str, str] = {}
    for name in gathered(replaced, list(replaced.nodes)):
        node = replaced.nodes[name]
        if node.op == LOWERED:
            before = latest.get(node.device)
            controls = dict.fromkeys((*node.control_inputs, *((before,) if before is not None else ())))
            node = node.changed(control_inputs=tuple(controls))
            latest[node.device] = name
        result.append(node)
    return Graph.of(result), {}


def gathered(graph: Graph, order: Sequence[str]) -> list[str]:
    """Return a topological order near ``order`` in which the nodes of each group are adjacent.

    Each group is at the position of its last node. Raises ShapeError if groups wait for each other.
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
    needed = {
        unit: {unit_of.get(each, each) for name in names for each in graph.nodes[name].needed}
        for unit, names in units.items()
    }
    sorted_units = sorted_by_need(needed, last.__getitem__)
    if len(sorted_units) < len(units):
        stuck = sorted(set(units) - set(sorted_units))
        raise ShapeError(
            f"nodes {', '.join(stuck[:5])}: some devices compute these nodes before a sum over all devices, and others "
            "after the sum; expected one order on all devices; use another combine than all_reduce, or "
            "cluster.collectives=none"
        )
    return [name for unit in sorted_units for name in units[unit]]


def _groups(graph: Graph, op: str) -> dict[str, list[Node]]:
    """Return the nodes of an op by their group, in the order of the graph."""
    groups: dict[str, list[Node]] = defaultdict(list)
    for node in graph:
        if node.op == op:
            groups[node.attributes["group"]].append(node)
    return groups


def _complete_groups(graph: Graph, members: Sequence[str]) -> list[list[Node]]:
    """Return the groups in which all members sum the same parts and part k is on member k; each is sorted by rank."""
    found = []
    for nodes in _groups(graph, WHOLE).values():
        ranked = sorted(nodes, key=lambda node: int(node.attributes["rank"]))
        parts = ranked[0].inputs
        devices = [node.device for node in ranked]
        part_devices = [graph.nodes[part.node].device for part in parts]
        alike = all(node.inputs == parts for node in ranked)
        ranks = [node.attributes["rank"] for node in ranked]
        if alike and devices == part_devices == list(members) and ranks == list(range(len(members))):
            found.append(ranked)
    return found


def _lowered(node: Node) -> Node:
    rank = int(node.attributes["rank"])
    attributes = {"group": node.attributes["group"], "rank": rank, "size": len(node.inputs)}
    return node.changed(op=LOWERED, inputs=(node.inputs[rank],), attributes=attributes)
