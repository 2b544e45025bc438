"""The greedy placement heuristic: each colocation group goes to the device on which it ends first in a simulation.

TensorFlow whitepaper 2016, section 3.2.1: the simulation starts with the sources (nodes without inputs); each visited
node goes to the device where it would finish first, including the transfers of its inputs. The paper leaves two points
open that matter for training graphs:

- *The order of visits*: the node with the longest path, in seconds, to the end of the step comes first. So parts of a
  batch advance through the same layers side by side.
- *The nodes that decide a group's device*: A layer's group begins with its variables and with values that depend only
  on variables. Placed alone, these nodes would go to any free device. Therefore the nodes of a group
  without a device are deferred until a computed value passes between this group and another one. Then all deferred
  nodes are tried together on each device. A source (variable, fed value or constant) joins its first reader's device.
"""

from collections import ChainMap, defaultdict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from runner.engine.compile.cost import DISPATCH_S, RESIDENT, Seconds
from runner.engine.graph import Cluster, Graph, Node, Tensor


def earliest_finish(
    graph: Graph, cluster: Cluster, groups: Mapping[str, str], feasible: Mapping[str, Sequence[str]], seconds: Seconds
) -> dict[str, str]:
    """Return the device name of every group.

    groups: node name -> group. feasible: group -> devices to choose from. A tensor is sent to a device once, however
    many nodes read it there. Sending occupies the sender. Receiving delays only the arrival. Links are always free. If
    several devices finish first, the first of them in the cluster is chosen.
    """
    simulation = _Simulation(graph, cluster, groups, feasible, seconds)
    for name in _by_path_to_the_end(graph, cluster, seconds):
        simulation.visit(graph.nodes[name])
    return simulation.finished()


def _by_path_to_the_end(graph: Graph, cluster: Cluster, seconds: Seconds) -> list[str]:
    """Return node names in topological order: longest remaining path first, timed on the first device."""
    device = cluster.devices[0]
    path: dict[str, float] = dict.fromkeys(graph.nodes, 0.0)
    for node in reversed(list(graph)):
        path[node.name] += seconds(graph, node, device)
        for name in node.needed:
            path[name] = max(path[name], path[node.name])
    # Sorting is stable: equally long paths stay in the order of the graph.
    return sorted(graph.nodes, key=lambda name: -path[name])


@dataclass
class _Clock:
    """Simulated times at which devices become free, nodes end, and tensors arrive on devices."""

    free: MutableMapping[str, float]
    ends: MutableMapping[str, float] = field(default_factory=dict)
    arrivals: MutableMapping[tuple[Tensor, str], float] = field(default_factory=dict)

    def copy(self) -> "_Clock":
        """Return a copy whose changes do not affect this clock."""
        return _Clock(ChainMap({}, self.free), ChainMap({}, self.ends), ChainMap({}, self.arrivals))


@dataclass
class _Simulation:
    graph: Graph
    cluster: Cluster
    groups: Mapping[str, str]
    feasible: Mapping[str, Sequence[str]]
    seconds: Seconds

    def __post_init__(self) -> None:
        self.devices = {device.name: device for device in self.cluster.devices}
        self.chosen = {group: devices[0] for group, devices in self.feasible.items() if len(devices) == 1}
        self.computing = {self.groups[node.name] for node in self.graph if node.needed}
        self.deferred: dict[str, list[Node]] = defaultdict(list)
        self.clock = _Clock(dict.fromkeys(self.devices, 0.0))

    def visit(self, node: Node) -> None:
        """Run a node, whose inputs have been visited, or defer it until its group has a device."""
        group = self.groups[node.name]
        self.deferred[group].append(node)
        others = [name for name in node.needed if self.groups[name] != group]
        computed = [name for name in others if self.graph.nodes[name].needed]
        for name in computed:
            self.run_deferred(self.groups[name])
        if computed or group in self.chosen:
            self.run_deferred(group)

    def run_deferred(self, group: str) -> None:
        """Run the deferred nodes of a group; first choose the group's device if the group has none."""
        nodes = self.deferred.pop(group, [])
        if not nodes:
            return
        if group not in self.chosen:
            tried = {device: self._run_on(device, nodes, self.clock.copy()) for device in self.feasible[group]}
            self.chosen[group] = min(tried, key=tried.__getitem__)
        device = self.chosen[group]
        self._take_sources_along(nodes, device)
        self._run_on(device, nodes, self.clock)

    def finished(self) -> dict[str, str]:
        """Run the groups that are still deferred, and return the device of every group."""
        for group in list(self.deferred):
            self.run_deferred(group)
        return self.chosen

    def _take_sources_along(self, nodes: Iterable[Node], device: str) -> None:
        """Place undecided sources that ``nodes`` read: on ``device`` if feasible, else on the first feasible device."""
        for node in nodes:
            for name in node.needed:
                group = self.groups[name]
                if group not in self.chosen and group not in self.computing:
                    self.chosen[group] = device if device in self.feasible[group] else self.feasible[group][0]
                    self.run_deferred(group)

    def _run_on(self, device: str, nodes: Iterable[Node], clock: _Clock) -> float:
        """Run nodes one after the other, and return when the device is free again."""
        for node in nodes:
            if node.op in RESIDENT:
                clock.ends[node.name] = 0.0
                continue
            arrivals = [self._arrival(clock, tensor, device) for tensor in node.inputs]
            awaited = [clock.ends.get(name, 0.0) for name in node.control_inputs]
            end = max([clock.free[device], *arrivals, *awaited]) + self.seconds(self.graph, node, self.devices[device])
            clock.free[device] = clock.ends[node.name] = end
        return clock.free[device]

    def _arrival(self, clock: _Clock, tensor: Tensor, device: str) -> float:
        """Return when a tensor arrives on ``device``; a source without a device is available from the start."""
        owner = self.chosen.get(self.groups[tensor.node])
        end = clock.ends.get(tensor.node, 0.0)
        if owner is None or owner == device or tensor.node not in clock.ends:
            return end
        key = (tensor, device)
        if key not in clock.arrivals:
            nbytes = self.graph.spec(tensor).nbytes
            sending, receiving = (DISPATCH_S + nbytes / self.devices[name].bytes_per_s for name in (owner, device))
            clock.free[owner] += sending
            clock.arrivals[key] = end + sending + self.cluster.transfer_s(nbytes) + receiving
        return clock.arrivals[key]
