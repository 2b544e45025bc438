"""The greedy heuristic of placement: a group goes where a simulated execution finishes first.

TensorFlow whitepaper 2016, section 3.2.1: the simulation starts with the sources; each node that is reached goes to
the device where it would finish the soonest, with what it costs there and what it costs to bring its inputs. Two
things that the text leaves open matter for training graphs:

- *In which order nodes are reached*: by the longest way, in seconds, that still lies before the end of the step.
  Parts of a batch that run through the same layers then advance layer by layer, beside each other.
- *Which node of a colocation group decides*. A layer's group begins with its variables and what is computed from them
  alone: those are ready at once, and would go wherever there is room. So nodes of an undecided group are put off until
  one reads what another group computed, or is itself read; then all that were put off are tried on each device
  together. A source (no inputs: a variable, a fed value, a constant) goes with its first reader.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from runner.engine.cost import RESIDENT, Seconds, copy_seconds
from runner.engine.device import Cluster
from runner.engine.graph import Graph, Node
from runner.engine.passes.rewriting import needed_by
from runner.engine.tensor import Tensor


def earliest_finish(
    graph: Graph,
    cluster: Cluster,
    groups: Mapping[str, str],
    feasible: Mapping[str, Sequence[str]],
    seconds: Seconds,
) -> dict[str, str]:
    """Choose a device for every group: group -> device name.

    groups: node name -> group. feasible: group -> devices to choose from. A tensor travels to a device once, however
    many nodes read it there: its owner is busy with sending it, its reader with receiving it, and wires are free at all
    times. Of devices that finish alike the first is taken.
    """
    simulation = _Simulation(graph, cluster, groups, feasible, seconds)
    for name in _by_way_to_the_end(graph, cluster, seconds):
        simulation.reach(graph.nodes[name])
    return simulation.finished()


def _by_way_to_the_end(graph: Graph, cluster: Cluster, seconds: Seconds) -> list[str]:
    """Names of nodes, longest remaining way first: a topological order. Nodes count as on the first device."""
    device = cluster.devices[0]
    way: dict[str, float] = dict.fromkeys(graph.nodes, 0.0)
    for node in reversed(list(graph)):
        way[node.name] += seconds(graph, node, device)
        for name in needed_by(node):
            way[name] = max(way[name], way[node.name])
    # Sorting is stable: of equally long ways the one that begins first in the graph.
    return sorted(graph.nodes, key=lambda name: -way[name])


@dataclass
class _Clock:
    """What is known of the simulated devices. free: when a device has done all; ends: when a node is done."""

    free: MutableMapping[str, float]
    ends: MutableMapping[str, float] = field(default_factory=dict)
    arrivals: MutableMapping[tuple[Tensor, str], float] = field(default_factory=dict)

    def copy(self) -> _Clock:
        """A clock to try something on."""
        return _Clock(ChainMap({}, self.free), ChainMap({}, self.ends), ChainMap({}, self.arrivals))


class _Simulation:
    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        groups: Mapping[str, str],
        feasible: Mapping[str, Sequence[str]],
        seconds: Seconds,
    ) -> None:
        self.graph = graph
        self.cluster = cluster
        self.groups = groups
        self.feasible = feasible
        self.seconds = seconds
        self.devices = {device.name: device for device in cluster.devices}
        self.chosen = {group: devices[0] for group, devices in feasible.items() if len(devices) == 1}
        self.computing = {groups[node.name] for node in graph if needed_by(node)}
        self.waiting: dict[str, list[Node]] = defaultdict(list)
        self.clock = _Clock(dict.fromkeys(self.devices, 0.0))

    def reach(self, node: Node) -> None:
        """Run a node whose inputs have been reached, or put it off with its group."""
        group = self.groups[node.name]
        self.waiting[group].append(node)
        others = [name for name in needed_by(node) if self.groups[name] != group]
        computed = [name for name in others if needed_by(self.graph.nodes[name])]
        for name in computed:
            self.settle(self.groups[name])
        if computed or group in self.chosen:
            self.settle(group)

    def settle(self, group: str) -> None:
        """Run what was put off of a group; decide its device if it has none."""
        nodes = self.waiting.pop(group, [])
        if not nodes:
            return
        if group not in self.chosen:
            tried = {device: self._run_on(device, nodes, self.clock.copy()) for device in self.feasible[group]}
            self.chosen[group] = min(tried, key=tried.__getitem__)
        device = self.chosen[group]
        self._take_sources_along(nodes, device)
        self._run_on(device, nodes, self.clock)

    def finished(self) -> dict[str, str]:
        """The choice, when all nodes have been reached."""
        for group in list(self.waiting):
            self.settle(group)
        return self.chosen

    def _take_sources_along(self, nodes: Iterable[Node], device: str) -> None:
        """Decide groups of sources alone that nobody has read so far."""
        for node in nodes:
            for name in needed_by(node):
                group = self.groups[name]
                if group not in self.chosen and group not in self.computing:
                    self.chosen[group] = device if device in self.feasible[group] else self.feasible[group][0]
                    self.settle(group)

    def _run_on(self, device: str, nodes: Iterable[Node], clock: _Clock) -> float:
        """Run nodes one after the other; returns when the last is done."""
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
        """When a tensor is there; a source that has no device yet would be there from the start."""
        owner = self.chosen.get(self.groups[tensor.node])
        end = clock.ends.get(tensor.node, 0.0)
        if owner is None or owner == device or tensor.node not in clock.ends:
            return end
        key = (tensor, device)
        if key not in clock.arrivals:
            nbytes = self.graph.spec(tensor).nbytes
            sending, receiving = (copy_seconds(nbytes, self.devices[name]) for name in (owner, device))
            clock.free[owner] += sending
            clock.arrivals[key] = end + sending + self.cluster.transfer_s(nbytes) + receiving
        return clock.arrivals[key]
