"""Which device runs which node (TensorFlow whitepaper 2016, sections 3.2.1 and 4.3).

Feasible devices of a node are those that satisfy its constraint and have a kernel for its op; nodes that must be
colocated form groups (union-find) whose feasible sets are intersected; what freedom is left goes to the device
where a simulated execution finishes first, transfers counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.engine.cost import Seconds, node_seconds
from runner.engine.device import Cluster, Device, DeviceName
from runner.engine.graph import Graph, Node
from runner.engine.passes.earliest_finish import earliest_finish

DeviceTypes = Callable[[Node], Collection[str] | None]


class PlacementError(ValueError):
    """No device satisfies what is asked of a node or of a colocation group."""


@dataclass(frozen=True)
class Groups:
    """What must be decided together.

    of: node name -> name of its group. feasible: group -> the devices that each of its nodes can run on, in the
    order of the cluster.
    """

    of: Mapping[str, str]
    feasible: Mapping[str, Sequence[str]]

    @property
    def decided(self) -> dict[str, str]:
        """The groups that have no choice, with their device."""
        return {group: devices[0] for group, devices in self.feasible.items() if len(devices) == 1}


def place(graph: Graph, cluster: Cluster, device_types: DeviceTypes, seconds: Seconds = node_seconds) -> Graph:
    """Return the graph with a full device name on every node.

    device_types: the device types with a kernel for a node, or None when any will do. seconds: what a node takes.
    Raises PlacementError naming the nodes, their constraints and the devices there are.
    """
    groups = colocation_groups(graph, cluster, device_types)
    chosen = groups.decided
    if len(chosen) < len(groups.feasible):
        chosen = earliest_finish(graph, cluster, groups.of, groups.feasible, seconds)
    return put(graph, groups, chosen)


def put(graph: Graph, groups: Groups, chosen: Mapping[str, str]) -> Graph:
    """Return the graph with each node on the device of its group.

    Who stands beside whom is settled with that, and named no more: passes may then join and drop nodes.
    """
    placed = Graph()
    for node in graph:
        placed.insert(replace(node, device=chosen[groups.of[node.name]], colocate_with=()))
    return placed


def colocation_groups(graph: Graph, cluster: Cluster, device_types: DeviceTypes) -> Groups:
    """Return the colocation groups of a graph with what is feasible for each; raises PlacementError as :func:`place`"""
    of = _united(graph)
    return Groups(of, _feasible_sets(graph, cluster, device_types, of))


def _united(graph: Graph) -> dict[str, str]:
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
