"""Placement of nodes on devices (TensorFlow whitepaper 2016, sections 3.2.1 and 4.3).

The feasible devices of a node satisfy its constraint and have a kernel for its op. Nodes that must be colocated form a
group (union-find), which can run on the devices that are feasible for all of its nodes. If there are several, the group
is placed on the device on which its simulated execution, including transfers, finishes first.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from runner.engine.compile.cost import Seconds, node_seconds
from runner.engine.compile.earliest_finish import earliest_finish
from runner.engine.graph import Cluster, Device, DeviceName, Graph, Node
from runner.engine.graph.graph import without_collection

DeviceTypes = Callable[[Node], Collection[str] | None]


class PlacementError(ValueError):
    """No device satisfies the constraints of a node or of a colocation group."""


@dataclass(frozen=True)
class Groups:
    """Colocation groups, each of which is placed as a whole.

    of: node name -> name of its group. feasible: group -> the devices that all of its nodes can run on, in the order of
    the cluster.
    """

    of: Mapping[str, str]
    feasible: Mapping[str, Sequence[str]]


@without_collection()
def place(graph: Graph, cluster: Cluster, device_types: DeviceTypes, seconds: Seconds = node_seconds) -> Graph:
    """Return the graph with a full device name on every node.

    device_types: returns the device types with a kernel for a node, None if the node needs no kernel. seconds: returns
    a node's duration. Raises PlacementError, with the constraint, if no device is feasible for a node or its group.
    """
    groups = colocation_groups(graph, cluster, device_types)
    chosen = {group: devices[0] for group, devices in groups.feasible.items() if len(devices) == 1}
    if len(chosen) < len(groups.feasible):
        chosen = earliest_finish(graph, cluster, groups.of, groups.feasible, seconds)
    return put(graph, groups, chosen)


def put(graph: Graph, groups: Groups, chosen: Mapping[str, str]) -> Graph:
    """Return the graph with each node on the device of its group, and without colocations.

    Placed nodes need no colocations, which would prevent passes from joining and dropping nodes.
    """

    def on_device(node: Node) -> Node:
        device = chosen[groups.of[node.name]]
        is_placed = (device, ()) == (node.device, node.colocate_with)
        return node if is_placed else node.changed(device=device, colocate_with=())

    return Graph.of(map(on_device, graph))


def colocation_groups(graph: Graph, cluster: Cluster, device_types: DeviceTypes) -> Groups:
    """Return the colocation groups of a graph; raises PlacementError like :func:`place`."""
    of = _united(graph)
    return Groups(of, _feasible_sets(graph, cluster, device_types, of))


def _united(graph: Graph) -> dict[str, str]:
    """Return node name -> name of the node's group, which is its root in a union-find over colocations."""
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
    devices = [(device, DeviceName.parse(device.name)) for device in cluster.devices]
    wanted = {constraint: DeviceName.parse(constraint) for constraint in {node.device for node in graph}}
    matching = {
        constraint: [device for device, name in devices if name.matches(parsed)]
        for constraint, parsed in wanted.items()
    }
    for node in graph:
        own = _able(node, matching[node.device], device_types(node), cluster)
        group = groups[node.name]
        common = [name for name in feasible.get(group, own) if name in own]
        if not common:
            others = sorted(name for name, root in groups.items() if root == group and name != node.name)
            raise PlacementError(
                f"node {node.name!r} (op {node.op!r}, constraint {node.device or 'none'!r}) fits only {own}, but must "
                f"share a device with {', '.join(others[:5])}, which fit only {feasible[group]}; expected constraints "
                "that leave a device with kernels for all of these nodes"
            )
        feasible[group] = common
    return feasible


def _able(node: Node, matching: Sequence[Device], types: Collection[str] | None, cluster: Cluster) -> list[str]:
    """Return the names of the ``matching`` devices that have a kernel for a node."""
    able = [device.name for device in matching if types is None or device.type in types]
    if not able:
        have = ", ".join(device.name for device in cluster.devices)
        raise PlacementError(
            f"node {node.name!r} (op {node.op!r}) cannot be placed: constraint {node.device or 'none'!r}, "
            f"device types with a kernel: {'any' if types is None else sorted(types)}, devices: {have}"
        )
    return able
