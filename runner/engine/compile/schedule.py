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
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import replace

from runner.engine.compile.cost import Seconds, node_seconds
from runner.engine.compile.passes.rewriting import needed_by
from runner.engine.graph.device import Cluster
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node

IDLE = 1.0
"""A device waits for a more urgent node instead of starting another one, if the wait is at most this factor times the
delay that the urgent node would have otherwise."""

PATIENCE = (0.5, 0.1)
"""Fractions of the slack by which nodes that read received tensors are delayed; the first that makes the step at most
the fraction ``LONGER`` longer is taken. A fraction of 1 means the latest start."""

LONGER = 1e-3


def start_times(graph: Graph, cluster: Cluster, seconds: Seconds = node_seconds) -> dict[str, float]:
    """Return each node's start in a simulated step, in seconds and sorted; the graph must contain its transfers."""
    work = _Work(graph, cluster, seconds)
    eager = _in_order(work, _Simulation(work, {}).order())
    slack = _slack(work, eager)
    for part in PATIENCE:
        delays = {name: part * each for name, each in slack.items()}
        patient = _in_order(work, _Simulation(work, delays).order())
        if _end(work, patient) <= (1.0 + LONGER) * _end(work, eager):
            return patient
    return eager


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


def _slack(work: "_Work", starts: dict[str, float]) -> dict[str, float]:
    """Return the slack in seconds of nodes that read received tensors and precede a Send.

    Nodes on one path share its slack.
    """
    latest = _latest_starts(work, starts)
    delayed = {name for name, receives in work.receives.items() if receives and work.to_send[name] < math.inf}
    before: dict[str, int] = {}
    for name in starts:
        before[name] = (name in delayed) + max((before[each] for each in work.before[name]), default=0)
    after: dict[str, int] = {}
    for name in reversed(starts):
        after[name] = (name in delayed) + max((after[each] for each in work.readers[name]), default=0)
    return {name: max(0.0, latest[name] - starts[name]) / (before[name] + after[name] - 1) for name in delayed}


def _end(work: "_Work", starts: dict[str, float]) -> float:
    """Return the end of the last node in seconds."""
    return max((start + work.seconds[name] for name, start in starts.items()), default=0.0)


def _latest_starts(work: "_Work", starts: dict[str, float]) -> dict[str, float]:
    """Return each node's latest start that does not make the step longer, assuming that devices are always free.

    Links may be busy: each carries its tensors in the order of their Recvs in ``starts``, which is sorted by time.
    """
    end = _end(work, starts)
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

    def arrival(self, recv: Node, sent: float, link_free: MutableMapping[tuple[str, str], float]) -> float:
        """Return the arrival time of a tensor that is sent at ``sent``; its link carries one tensor at a time.

        link_free: link -> the time from which it is free, which is updated.
        """
        link = self.link(recv)
        link_free[link] = max(sent, link_free[link]) + self.occupied_s(recv)
        return link_free[link] + self.cluster.latency_s

    def _only_updates(self, name: str) -> bool:
        """Return whether a node is an assign, or computes only assigned values."""
        readers = self.readers[name]
        return self.graph.nodes[name].op == "assign" or (
            bool(readers) and all(self.graph.nodes[reader].op == "assign" for reader in readers)
        )


class _Simulation:
    """One step on a virtual clock, in which a more urgent node interrupts another one of its device.

    Only the order in which nodes end is of interest: a long node does not begin before a short and urgent one whose
    tensor arrives soon. delays: node -> seconds by which its start is delayed while its device has other work.
    """

    def __init__(self, work: _Work, delays: Mapping[str, float]) -> None:
        self.work = work
        self.delays = delays
        self.missing = {name: len(before) for name, before in work.before.items()}
        self.available: dict[str, float] = defaultdict(float)
        self.left = dict(work.seconds)
        self.events: list[tuple[float, int, str]] = []  # (time, graph order, node) of arrivals, delays and ends
        self.ready: dict[str, list[tuple[tuple[float, bool, int], str]]] = defaultdict(list)  # device -> (rank, node)
        self.delayed: dict[str, dict[str, float]] = defaultdict(dict)  # device -> node -> end of its delay
        self.running: dict[str, tuple[str, float]] = {}  # device -> node and the time since which it runs
        self.link_free: dict[tuple[str, str], float] = defaultdict(float)
        self.ended: dict[str, None] = {}

    def order(self) -> list[str]:
        """Return the nodes in the order in which they end, each Recv directly before its first reader."""
        for name, count in self.missing.items():
            if count == 0:
                self._push(0.0, name)
        while self.events:
            now = self.events[0][0]
            touched = set()
            while self.events and self.events[0][0] == now:
                name = heapq.heappop(self.events)[2]
                device = self.work.graph.nodes[name].device
                self._happens(device, name, now)
                touched.add(device)
            for device in sorted(touched):
                self._choose(device, now)
        return list(self.ended)

    def _push(self, time: float, name: str) -> None:
        heapq.heappush(self.events, (time, self.work.index[name], name))

    def _happens(self, device: str, name: str, now: float) -> None:
        """End a running node, or make a node ready whose inputs have arrived or whose delay is over."""
        running = self.running.get(device)
        if running is not None and running[0] == name:
            if running[1] + self.left[name] <= now:
                del self.running[device]
                self._end(name, now)
        elif name in self.delayed[device]:
            if self.delayed[device][name] <= now:
                del self.delayed[device][name]
                heapq.heappush(self.ready[device], (self.work.rank[name], name))
        elif name not in self.ended and self.available[name] == now and self.left[name] == self.work.seconds[name]:
            delay = self.delays.get(name, 0.0)
            if delay:
                self.delayed[device][name] = now + delay
                self._push(now + delay, name)
            else:
                heapq.heappush(self.ready[device], (self.work.rank[name], name))

    def _choose(self, device: str, now: float) -> None:
        """Run the most urgent node that is ready, or else the one whose delay ends first."""
        ready, running = self.ready[device], self.running.get(device)
        if running is not None:
            name, since = running
            left = self.left[name] - (now - since)
            done = self.work.seconds[name] - left
            if not ready or self.work.rank[name] <= ready[0][0] or done > IDLE * left:
                return
            self.left[name] = left
            heapq.heappush(ready, (self.work.rank[name], name))
        if ready:
            name = heapq.heappop(ready)[1]
        elif self.delayed[device]:
            name = min(self.delayed[device], key=self.delayed[device].__getitem__)
            del self.delayed[device][name]
        else:
            return
        self.running[device] = name, now
        self._push(now + self.left[name], name)

    def _end(self, name: str, now: float) -> None:
        for each in (*self.work.receives[name], name):
            self.ended.setdefault(each)
        self._release_readers(name, now)

    def _release_readers(self, name: str, ended: float) -> None:
        for reader in self.work.readers[name]:
            node = self.work.graph.nodes[reader]
            arrival = self.work.arrival(node, ended, self.link_free) if node.op == "recv" else ended
            self.available[reader] = max(self.available[reader], arrival)
            self.missing[reader] -= 1
            if self.missing[reader] > 0:
                continue
            if node.op == "recv" and self.work.readers[reader]:
                self._release_readers(reader, self.available[reader])
            else:
                self._push(self.available[reader], reader)


def _in_order(work: _Work, order: Iterable[str]) -> dict[str, float]:
    """Return each node's start, sorted, if every device runs its nodes in this order.

    A Recv runs directly before its first reader, when all inputs of the reader have arrived.
    """
    free: dict[str, float] = defaultdict(float)
    link_free: dict[tuple[str, str], float] = defaultdict(float)
    available: dict[str, float] = defaultdict(float)
    starts: dict[str, float] = {}
    for name in order:
        node = work.graph.nodes[name]
        if node.op == "recv" and work.readers[name]:
            continue
        start = max(free[node.device], available[name])
        for each in (*work.receives[name], name):
            if each not in starts:
                starts[each] = start
                start += work.seconds[each]
        free[node.device] = start
        for reader in work.readers[name]:
            receiver = work.graph.nodes[reader]
            if receiver.op != "recv":
                available[reader] = max(available[reader], start)
                continue
            arrival = work.arrival(receiver, start, link_free)
            for following in work.readers[reader]:
                available[following] = max(available[following], arrival)
            available[reader] = arrival
    return dict(sorted(starts.items(), key=lambda item: item[1]))
