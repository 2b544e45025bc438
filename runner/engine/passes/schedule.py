"""The order in which each device runs its nodes: list scheduling on a virtual clock.

All devices are simulated together under the cost model. A device that is free takes, among the nodes whose inputs
have arrived, the one nearest (in estimated seconds) to its next Send; so a layer's gradient leaves as soon as it
exists, and what waits for a transfer is run when the transfer is expected, not before. Among equals an update of a
variable goes first: it needs no memory of its own and is the end of a gradient. Other ties go to graph order. The
per-device orders are slices of one global topological order, therefore executing them cannot deadlock.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict

from runner.engine.cost import Seconds, node_seconds
from runner.engine.device import Cluster
from runner.engine.graph import Graph, Node


def start_times(graph: Graph, cluster: Cluster, seconds: Seconds = node_seconds) -> dict[str, float]:
    """Simulated start of every node of a placed and cut graph, in seconds since the step began, in that order."""
    return _Simulation(graph, cluster, seconds).run()


def end_of(graph: Graph, starts: dict[str, float], cluster: Cluster, seconds: Seconds = node_seconds) -> float:
    """Seconds until the last node of a simulated step is done."""
    ends = (starts[node.name] + seconds(graph, node, cluster.device(node.device)) for node in graph)
    return max(ends, default=0.0)


def split(graph: Graph, order: list[str]) -> dict[str, Graph]:
    """Return one graph per device, nodes in scheduled order; control edges between devices fall to the rendezvous."""
    from_device: dict[str, Graph] = {}
    for name in order:
        node = graph.nodes[name]
        part = from_device.setdefault(node.device, Graph())
        local = tuple(c for c in node.control_inputs if graph.nodes[c].device == node.device)
        part.insert(node if local == node.control_inputs else _with_controls(node, local))
    return from_device


def _with_controls(node: Node, controls: tuple[str, ...]) -> Node:
    return Node(node.name, node.op, node.inputs, node.attributes, node.outputs, node.device, controls, (), node.layer)


class _Simulation:
    def __init__(self, graph: Graph, cluster: Cluster, seconds: Seconds) -> None:
        self.graph = graph
        self.cluster = cluster
        self.index = {name: i for i, name in enumerate(graph.nodes)}
        self.seconds = {node.name: seconds(graph, node, cluster.device(node.device)) for node in graph}
        self.readers: dict[str, list[str]] = defaultdict(list)
        self.missing: dict[str, int] = {}
        for node in graph:
            before = dict.fromkeys((*(t.node for t in node.inputs), *node.control_inputs))
            self.missing[node.name] = len(before)
            for name in before:
                self.readers[name].append(node.name)
        self.to_send = self._seconds_to_next_send()
        self.rank = {name: (self.to_send[name], not self._only_updates(name), self.index[name]) for name in graph.nodes}

    def _only_updates(self, name: str) -> bool:
        """Whether a node is an assign, or computes nothing but values that are assigned."""
        readers = self.readers[name]
        return self.graph.nodes[name].op == "assign" or (
            bool(readers) and all(self.graph.nodes[reader].op == "assign" for reader in readers)
        )

    def _seconds_to_next_send(self) -> dict[str, float]:
        distance: dict[str, float] = {}
        for node in reversed(list(self.graph)):
            if node.op == "send":
                distance[node.name] = 0.0
            else:
                onward = min((distance[reader] for reader in self.readers[node.name]), default=math.inf)
                distance[node.name] = onward + self.seconds[node.name]
        return distance

    def run(self) -> dict[str, float]:
        arrivals: list[tuple[float, int, str]] = []  # (time inputs are there, graph order, node)
        ready: dict[str, list[tuple[tuple[float, bool, int], str]]] = defaultdict(list)  # device -> (rank, node)
        busy_until: dict[str, float] = defaultdict(float)
        available: dict[str, float] = defaultdict(float)
        starts: dict[str, float] = {}
        for node in self.graph:
            if self.missing[node.name] == 0:
                heapq.heappush(arrivals, (0.0, self.index[node.name], node.name))
        now = 0.0
        while len(starts) < len(self.graph):
            while arrivals and arrivals[0][0] <= now:
                _, _, name = heapq.heappop(arrivals)
                heapq.heappush(ready[self.graph.nodes[name].device], (self.rank[name], name))
            for device in sorted(d for d in ready if ready[d] and busy_until[d] <= now):
                _, name = heapq.heappop(ready[device])
                starts[name] = now
                busy_until[device] = now + self.seconds[name]
                self._release_readers(name, busy_until[device], available, arrivals)
            now = self._next_event(now, arrivals, ready, busy_until)
        return starts

    def _release_readers(
        self,
        name: str,
        finished: float,
        available: dict[str, float],
        arrivals: list[tuple[float, int, str]],
    ) -> None:
        for reader in self.readers[name]:
            arrival = finished
            if self.graph.nodes[reader].op == "recv":
                arrival += self.cluster.transfer_s(self.graph.nodes[reader].outputs[0].nbytes)
            available[reader] = max(available[reader], arrival)
            self.missing[reader] -= 1
            if self.missing[reader] == 0:
                heapq.heappush(arrivals, (available[reader], self.index[reader], reader))

    @staticmethod
    def _next_event(
        now: float,
        arrivals: list[tuple[float, int, str]],
        ready: dict[str, list[tuple[tuple[float, bool, int], str]]],
        busy_until: dict[str, float],
    ) -> float:
        times = [busy_until[device] for device, waiting in ready.items() if waiting]
        if arrivals:
            times.append(arrivals[0][0])
        return max(now, min(times, default=now))
