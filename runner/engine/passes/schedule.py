"""The order in which each device runs its nodes: list scheduling on a virtual clock.

All devices are simulated together under the cost model, and so are the links between them, each of which carries one
tensor at a time. A device that is free takes, among the nodes whose inputs have arrived, the one nearest (in estimated
seconds) to its next Send; so a layer's gradient leaves as soon as it exists. Among equals an update of a variable goes
first: it needs no memory of its own and is the end of a gradient. Other ties go to graph order.

A Recv is no choice of its own: it stands directly before the first node that reads it, as late as can be, so that no
device waits for, or keeps, what it does not need yet (TensorFlow whitepaper 2016, section 5.2). A node that reads what
was received and serves a later Send is put off for a part of the time by which it may be late without making the step
longer: a tensor that comes later than estimated then keeps nobody waiting, as long as there is something else to do.

The per-device orders are slices of one global topological order, therefore executing them cannot deadlock.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping

from runner.engine.cost import Seconds, node_seconds
from runner.engine.device import Cluster
from runner.engine.graph import Graph, Node
from runner.engine.passes.rewriting import needed_by

PATIENCE = 0.5
"""Part of its slack for which a node that reads what was received is put off: halfway from too early to too late."""


def start_times(graph: Graph, cluster: Cluster, seconds: Seconds = node_seconds) -> dict[str, float]:
    """Simulated start of every node of a placed and cut graph, in seconds since the step began, in that order."""
    work = _Work(graph, cluster, seconds)
    eager = _Simulation(work, {}).run()
    return _Simulation(work, _patience(work, eager)).run()


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


def _patience(work: _Work, starts: dict[str, float]) -> dict[str, float]:
    """Seconds by which to put off nodes that read what was received, where a Send waits for them."""
    latest = _latest_starts(work, starts)
    return {
        name: PATIENCE * max(0.0, latest[name] - starts[name])
        for name, receives in work.receives.items()
        if receives and work.to_send[name] < math.inf
    }


def _latest_starts(work: _Work, starts: dict[str, float]) -> dict[str, float]:
    """When each node has to start for the step to end as it does, were devices free at all times.

    Links are not: each carries its tensors in the order in which they were received. starts: in their order.
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
    """What there is to do.

    before, readers: of each node, those it needs and those that need it. receives: of those that it needs, the Recvs.
    seconds: of each node on its device. to_send: seconds from the start of a node to that of the next Send, on a path
    with nothing else to do; inf where none follows.
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
        """Devices at the ends of the link that a Recv is the end of."""
        return recv.attributes["source"], recv.device

    def occupied_s(self, recv: Node) -> float:
        """Seconds for which the tensor of a Recv occupies its link."""
        return recv.outputs[0].nbytes / self.cluster.bytes_per_s

    def _only_updates(self, name: str) -> bool:
        """Whether a node is an assign, or computes nothing but values that are assigned."""
        readers = self.readers[name]
        return self.graph.nodes[name].op == "assign" or (
            bool(readers) and all(self.graph.nodes[reader].op == "assign" for reader in readers)
        )


class _Simulation:
    """One step on a virtual clock.

    patience: node -> seconds for which it is not begun, though it could be, while its device has something else to do.
    """

    def __init__(self, work: _Work, patience: Mapping[str, float]) -> None:
        self.work = work
        self.patience = patience
        self.missing = {name: len(before) for name, before in work.before.items()}
        self.available: dict[str, float] = defaultdict(float)
        self.arrivals: list[tuple[float, int, str]] = []  # (time inputs are there, graph order, node)
        self.ready: dict[str, list[tuple[tuple[float, bool, int], str]]] = defaultdict(list)  # device -> (rank, node)
        self.put_off: dict[str, list[tuple[float, int, str]]] = defaultdict(list)  # device -> (until, index, node)
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
                until = time + self.patience.get(name, 0.0)
                heapq.heappush(self.put_off[work.graph.nodes[name].device], (until, index, name))
            for device in sorted(self.put_off):
                begun = self._next_node(device, now)
                if begun is not None:
                    self.busy_until[device] = now
                    self._begin(device, begun)
            now = self._next_event(now)
        return dict(sorted(self.starts.items(), key=lambda item: item[1]))

    def _next_node(self, device: str, now: float) -> str | None:
        """What a device begins now: of what is not put off the first by rank, else what was to be begun soonest."""
        if self.busy_until[device] > now:
            return None
        put_off, ready = self.put_off[device], self.ready[device]
        while put_off and put_off[0][0] <= now:
            _, _, name = heapq.heappop(put_off)
            heapq.heappush(ready, (self.work.rank[name], name))
        if ready:
            return heapq.heappop(ready)[1]
        return heapq.heappop(put_off)[2] if put_off else None

    def _begin(self, device: str, name: str) -> None:
        """Run a node, and before it what it is the first to read of what was received."""
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
        """When a tensor is there that is sent now: its link carries one after the other."""
        link = self.work.link(recv)
        self.link_free[link] = max(sent, self.link_free[link]) + self.work.occupied_s(recv)
        return self.link_free[link] + self.work.cluster.latency_s

    def _next_event(self, now: float) -> float:
        times = [self.busy_until[device] for device in self.put_off if self.ready[device] or self.put_off[device]]
        if self.arrivals:
            times.append(self.arrivals[0][0])
        return max(now, min(times, default=now))
