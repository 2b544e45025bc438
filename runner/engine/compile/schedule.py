"""The order in which each device runs its nodes: list scheduling on a virtual clock.

The cost model simulates all devices and links together; each link carries one tensor at a time. Among the
nodes whose inputs have arrived, a free device runs the node nearest (in estimated seconds) to its next Send, so that
the gradient of a layer is sent as soon as it exists. Of equally near nodes, an update of a variable goes first, because
the update needs no additional memory and frees a gradient. Remaining ties follow the order of the graph.

A Recv is not ranked but runs as late as possible, directly before the first node that reads its tensor. So no device
waits for a tensor or stores a tensor before a node needs it (TensorFlow whitepaper 2016, section 5.2). A node that
reads a received tensor and precedes a later Send is delayed by a part of its slack (the longest delay that does not
make the step longer). So if a tensor arrives later than estimated, the device does other work in the meantime.

The order of each device is a subsequence of one global topological order. Therefore the devices cannot deadlock.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from runner.engine.compile.cost import Seconds, node_seconds
from runner.engine.compile.passes.rewriting import needed_by
from runner.engine.graph.device import Cluster
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node

PATIENCE = 0.5
"""Fraction of the slack by which a node that reads a received tensor is delayed; 1 means the latest start."""


def start_times(graph: Graph, cluster: Cluster, seconds: Seconds = node_seconds) -> dict[str, float]:
    """Return each node's start in a simulated step, in seconds and sorted; the graph must contain its transfers."""
    work = _Work(graph, cluster, seconds)
    eager = _Simulation(work, {}).run()
    return _Simulation(work, _delays(work, eager)).run()


def end_of(graph: Graph, starts: dict[str, float], cluster: Cluster, seconds: Seconds = node_seconds) -> float:
    """Return the seconds from the start of a simulated step to the end of the last node."""
    ends = (starts[node.name] + seconds(graph, node, cluster.device(node.device)) for node in graph)
    return max(ends, default=0.0)


def split(graph: Graph, order: list[str]) -> dict[str, Graph]:
    """Return one graph per device in scheduled order, without the control edges between devices."""
    from_device: dict[str, Graph] = {}
    for name in order:
        node = graph.nodes[name]
        part = from_device.setdefault(node.device, Graph())
        local = tuple(c for c in node.control_inputs if graph.nodes[c].device == node.device)
        part.insert(node if local == node.control_inputs else replace(node, control_inputs=local, colocate_with=()))
    return from_device


def _delays(work: "_Work", starts: dict[str, float]) -> dict[str, float]:
    """Return the delays in seconds of nodes that read received tensors and precede a Send."""
    latest = _latest_starts(work, starts)
    return {
        name: PATIENCE * max(0.0, latest[name] - starts[name])
        for name, receives in work.receives.items()
        if receives and work.to_send[name] < math.inf
    }


def _latest_starts(work: "_Work", starts: dict[str, float]) -> dict[str, float]:
    """Return each node's latest start that does not make the step longer, assuming that devices are always free.

    Links may be busy: each carries its tensors in the order of their Recvs in ``starts``, which is sorted by time.
    """
    end = max((start + work.seconds[name] for name, start in starts.items()), default=0.0)
    latest: dict[str, float] = {}
    taken: dict[tuple[str, str], float] = defaultdict(lambda: math.inf)
    for name in reversed(starts):
        node = work.graph.nodes[name]
        latest[name] = min((latest[reader] for reader in work.readers[name]), default=end) - work.seconds[name]
        if node.op == "recv":
            link = work.link(node)
            there = min(latest[name] - work.cluster.latency_s, taken[link])
            latest[name] = taken[link] = there - work.occupied_s(node)
    return latest


class _Work:
    """The nodes of a step with their durations and dependencies.

    before: node -> the nodes that it needs. readers: node -> the nodes that need it. receives: node -> the Recvs that
    it needs. seconds: duration of each node on its device. to_send: seconds from the start of a node to the start of
    the next Send, on a path without waiting; inf if no Send follows.
    """

    def __init__(self, graph: Graph, cluster: Cluster, seconds: Seconds) -> None:
        self.graph = graph
        self.cluster = cluster
        self.index = {name: i for i, name in enumerate(graph.nodes)}
        self.seconds = {node.name: seconds(graph, node, cluster.device(node.device)) for node in graph}
        self.before = {node.name: tuple(dict.fromkeys(needed_by(node))) for node in graph}
        self.receives = {
            name: [each for each in before if graph.nodes[each].op == "recv"] for name, before in self.before.items()
        }
        self.readers: dict[str, list[str]] = defaultdict(list)
        for name, before in self.before.items():
            for each in before:
                self.readers[each].append(name)
        self.to_send: dict[str, float] = {}
        for name in reversed(self.before):
            onward = min((self.to_send[reader] for reader in self.readers[name]), default=math.inf)
            self.to_send[name] = 0.0 if graph.nodes[name].op == "send" else onward + self.seconds[name]
        self.rank = {name: (self.to_send[name], not self._only_updates(name), self.index[name]) for name in graph.nodes}

    def link(self, recv: Node) -> tuple[str, str]:
        """Return the link of a Recv: the source device and the device of the Recv."""
        return recv.attributes["source"], recv.device

    def occupied_s(self, recv: Node) -> float:
        """Return the seconds for which the tensor of a Recv occupies its link."""
        return recv.outputs[0].nbytes / self.cluster.bytes_per_s

    def _only_updates(self, name: str) -> bool:
        """Return whether a node is an assign, or computes only assigned values."""
        readers = self.readers[name]
        return self.graph.nodes[name].op == "assign" or (
            bool(readers) and all(self.graph.nodes[reader].op == "assign" for reader in readers)
        )


class _Simulation:
    """One step on a virtual clock.

    delays: node -> seconds by which its start is delayed while its device has other work.
    """

    def __init__(self, work: _Work, delays: Mapping[str, float]) -> None:
        self.work = work
        self.delays = delays
        self.missing = {name: len(before) for name, before in work.before.items()}
        self.available: dict[str, float] = defaultdict(float)
        self.arrivals: list[tuple[float, int, str]] = []  # (arrival of the last input, graph order, node)
        self.ready: dict[str, list[tuple[tuple[float, bool, int], str]]] = defaultdict(list)  # device -> (rank, node)
        self.delayed: dict[str, list[tuple[float, int, str]]] = defaultdict(list)  # device -> (until, index, node)
        self.busy_until: dict[str, float] = defaultdict(float)
        self.link_free: dict[tuple[str, str], float] = defaultdict(float)
        self.starts: dict[str, float] = {}

    def run(self) -> dict[str, float]:
        work, now = self.work, 0.0
        for name, count in self.missing.items():
            if count == 0:
                heapq.heappush(self.arrivals, (0.0, work.index[name], name))
        while len(self.starts) < len(work.graph):
            while self.arrivals and self.arrivals[0][0] <= now:
                time, index, name = heapq.heappop(self.arrivals)
                until = time + self.delays.get(name, 0.0)
                heapq.heappush(self.delayed[work.graph.nodes[name].device], (until, index, name))
            for device in sorted(self.delayed):
                started = self._next_node(device, now)
                if started is not None:
                    self.busy_until[device] = now
                    self._start(device, started)
            now = self._next_event(now)
        return dict(sorted(self.starts.items(), key=lambda item: item[1]))

    def _next_node(self, device: str, now: float) -> str | None:
        """Return the node that a device starts now: the first by rank, or else the one whose delay ends first."""
        if self.busy_until[device] > now:
            return None
        delayed, ready = self.delayed[device], self.ready[device]
        while delayed and delayed[0][0] <= now:
            _, _, name = heapq.heappop(delayed)
            heapq.heappush(ready, (self.work.rank[name], name))
        if ready:
            return heapq.heappop(ready)[1]
        return heapq.heappop(delayed)[2] if delayed else None

    def _start(self, device: str, name: str) -> None:
        """Run a node, directly preceded by those of its Recvs that have not run yet."""
        for each in (*self.work.receives[name], name):
            if each not in self.starts:
                self.starts[each] = self.busy_until[device]
                self.busy_until[device] += self.work.seconds[each]
        self._release_readers(name, self.busy_until[device])

    def _release_readers(self, name: str, finished: float) -> None:
        for reader in self.work.readers[name]:
            node = self.work.graph.nodes[reader]
            arrival = self._arrival(node, finished) if node.op == "recv" else finished
            self.available[reader] = max(self.available[reader], arrival)
            self.missing[reader] -= 1
            if self.missing[reader] > 0:
                continue
            if node.op == "recv" and self.work.readers[reader]:
                self._release_readers(reader, self.available[reader])
            else:
                heapq.heappush(self.arrivals, (self.available[reader], self.work.index[reader], reader))

    def _arrival(self, recv: Node, sent: float) -> float:
        """Return the arrival time of a tensor that is sent at ``sent``; its link carries one tensor at a time."""
        link = self.work.link(recv)
        self.link_free[link] = max(sent, self.link_free[link]) + self.work.occupied_s(recv)
        return self.link_free[link] + self.work.cluster.latency_s

    def _next_event(self, now: float) -> float:
        times = [self.busy_until[device] for device in self.delayed if self.ready[device] or self.delayed[device]]
        if self.arrivals:
            times.append(self.arrivals[0][0])
        return max(now, min(times, default=now))
