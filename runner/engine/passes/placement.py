"""Which device runs which node (TensorFlow whitepaper 2016, sections 3.2.1 and 4.3).

Feasible devices of a node are those that satisfy its constraint and have a kernel for its op; nodes that must be
colocated form groups (union-find) whose feasible sets are intersected; what freedom is left goes to the device
where a simulated execution finishes the node first, transfers counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from runner.engine import cost
from runner.engine.device import Cluster, Device, DeviceName
from runner.engine.graph import Graph, Node

DeviceTypes = Callable[[Node], Collection[str] | None]


class PlacementError(ValueError):
    """No device satisfies what is asked of a node or of a colocation group."""


def place(graph: Graph, cluster: Cluster, device_types: DeviceTypes) -> Graph:
    """Return the graph with a full device name on every node.

    device_types: the device types with a kernel for a node, or None when any will do. Raises PlacementError
    naming the nodes, their constraints and the devices there are.
    """
    groups = _colocation_groups(graph)
    feasible = _feasible_sets(graph, cluster, device_types, groups)
    chosen = _earliest_finish(graph, cluster, groups, feasible)
    placed = Graph()
    for node in graph:
        placed.insert(replace(node, device=chosen[groups[node.name]]))
    return placed


def _colocation_groups(graph: Graph) -> dict[str, str]:
    """Union-find over colocation: node name -> name of its group's root."""
    parent = {name: name for name in graph.nodes}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for node in graph:
        for partner in node.colocate_with:
            parent[root(node.name)] = root(partner)
    return {name: root(name) for name in graph.nodes}


def _feasible_sets(
    graph: Graph, cluster: Cluster, device_types: DeviceTypes, groups: dict[str, str]
) -> dict[str, list[str]]:
    feasible: dict[str, list[str]] = {}
    matching = {
        constraint: [d for d in cluster.devices if DeviceName.parse(d.name).matches(DeviceName.parse(constraint))]
        for constraint in {node.device for node in graph}
    }
    for node in graph:
        own = _able(node, matching[node.device], device_types(node), cluster)
        group = groups[node.name]
        common = [name for name in feasible.get(group, own) if name in own]
        if not common:
            others = sorted(name for name, root in groups.items() if root == group and name != node.name)
            raise PlacementError(
                f"node {node.name!r} wants {node.device or 'any device'!r}, but must share a device with "
                f"{', '.join(others[:5])}, feasible on {feasible[group]}"
            )
        feasible[group] = common
    return feasible


def _able(node: Node, matching: Sequence[Device], types: Collection[str] | None, cluster: Cluster) -> list[str]:
    """Of the devices that satisfy a node's constraint those with a kernel for it."""
    able = [device.name for device in matching if types is None or device.type in types]
    if not able:
        have = ", ".join(device.name for device in cluster.devices)
        raise PlacementError(
            f"node {node.name!r} (op {node.op!r}) cannot be placed: constraint {node.device or 'none'!r}, "
            f"device types with a kernel: {'any' if types is None else sorted(types)}, devices: {have}"
        )
    return able


def _earliest_finish(
    graph: Graph, cluster: Cluster, groups: dict[str, str], feasible: dict[str, list[str]]
) -> dict[str, str]:
    """Greedy simulation in graph order: a group settles where its first node finishes first."""
    chosen: dict[str, str] = {}
    devices = {device.name: device for device in cluster.devices}
    free = dict.fromkeys(devices, 0.0)
    finished: dict[str, float] = {}
    for node in graph:
        group = groups[node.name]
        candidates = [chosen[group]] if group in chosen else feasible[group]

        def finish_on(name: str, node: Node = node) -> float:
            start = free[name]
            for tensor in node.inputs:
                remote = chosen[groups[tensor.node]] != name
                wire = cluster.transfer_s(graph.spec(tensor).nbytes) if remote else 0.0
                start = max(start, finished[tensor.node] + wire)
            return start + cost.node_seconds(graph, node, devices[name])

        finish = {name: finish_on(name) for name in candidates}
        best = min(finish, key=finish.__getitem__)
        finished[node.name] = free[best] = finish[best]
        chosen[group] = best
    return chosen
