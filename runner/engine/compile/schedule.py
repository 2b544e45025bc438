"""The order in which each device runs its nodes: list scheduling on a virtual clock.

The cost model simulates all devices and links together; each link carries one tensor at a time. Among the
nodes whose inputs have arrived, a free device runs the node nearest (in estimated seconds) to its next Send, so that
the gradient of a layer is sent as soon as it exists. Of equally near nodes, an update of a variable goes first, because
the update needs no additional memory and frees a gradient. Remaining ties follow the order of the graph.

A device may wait for a nearer node whose tensor arrives soon, instead of starting a long node. Otherwise a chain of
messages between devices, such as the passes of dense layers in the hybrid scheme, would stop at every long node.

A Recv is not ranked but runs as late as possible, directly before the first node that reads its tensor. So no device
waits for a tensor or stores a tensor before a node needs it (TensorFlow whitepaper 2016, section 5.2). A node that
reads a received tensor and precedes a Send is delayed by a fraction of its slack (the longest delay that does not make
the step longer). So if a tensor arrives later than estimated, the device does other work in the meantime.

The order of each device is a subsequence of one global topological order. Therefore the devices cannot deadlock.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from runner.engine.compile.cost import Seconds, node_seconds
from runner.engine.graph.device import Cluster
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node

WAIT = 0.5
"""Longest wait for a nearer node, as a fraction of the duration of the node that the device could start instead."""

PATIENCE = (0.5, 0.1)
"""Fractions of the slack by which nodes that read received tensors are delayed; see :func:`schedule`."""

LONGER = 1.001
"""Factor up to which two simulated steps count as equally long."""


def schedule(graph: Graph, cluster: Cluster, seconds: Seconds = node_seconds) -> tuple[dict[str, float], float]:
    """Return each node's start in a simulated step, in seconds and sorted, and the end of the step.

    The graph must contain its transfers. Devices wait for nearer nodes only if this makes the step shorter. Of the
    delays in ``PATIENCE``, the first that does not make the step longer is used.
    """
    work = _Work(graph, cluster, seconds)
    starts = _start_times(work)
    return starts, work.end(starts)


def _start_times(work: "_Work") -> dict[str, float]:
    starts = _Simulation(work, {}, wait=0.0).run()
    if not any(work.receives.values()):
        return starts
    waiting, wait = _Simulation(work, {}, wait=WAIT).run(), 0.0
    if LONGER * work.end(waiting) < work.end(starts):
        starts, wait = waiting, WAIT
    slack = _slack(work, starts)
    for part in PATIENCE:
        patient = _Simulation(work, {name: part * each for name, each in slack.items()}, wait).run()
        if work.end(patient) <= LONGER * work.end(starts):
            return patient
    return starts


def split(graph: Graph, order: list[str]) -> dict[str, Graph]:
    """Return one graph per device in scheduled order, without the control edges between devices."""
    from_device: dict[str, list[Node]] = {}
    for name in order:
        node = graph.nodes[name]
        local = tuple(c for c in node.control_inputs if graph.nodes[c].device == node.device)
        if local != node.control_inputs:
            node = replace(node, control_inputs=local, colocate_with=())
        from_device.setdefault(node.device, []).append(node)
    return {device: Graph.of(nodes) for device, nodes in from_device.items()}


def _slack(work: "_Work", starts: dict[str, float]) -> dict[str, float]:
    """Return the slack in seconds of nodes that read received tensors and precede a Send."""
    latest = _latest_starts(work, starts)
    return {
        name: max(0.0, latest[name] - starts[name])
        for name, receives in work.receives.items()
        if receives and work.to_send[name] < math.inf
    }


def _latest_starts(work: "_Work", starts: dict[str, float]) -> dict[str, float]:
    """Return each node's latest start that does not make the step longer, assuming that devices are always free.

    Links may be busy: each carries its tensors in the order of their Recvs in ``starts``, which is sorted by time.
    """
    end = work.end(starts)
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
        devices = {name: cluster.device(name) for name in {node.device for node in graph}}
        self.seconds = {node.name: seconds(graph, node, devices[node.device]) for node in graph}
        self.before = {node.name: tuple(dict.fromkeys(node.needed)) for node in graph}
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

    def end(self, starts: Mapping[str, float]) -> float:
        """Return the end of the last node in seconds."""
        return max((start + self.seconds[name] for name, start in starts.items()), default=0.0)

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


_ARRIVAL, _DELAY_OVER, _END = range(3)
"""Kinds of events of a node: its inputs have arrived, its delay is over, it ends."""


@dataclass(frozen=True)
class _Running:
    """A node that a device runs, from ``begin`` to ``end`` in seconds. turn: number of nodes started before it."""

    name: str
    begin: float
    end: float
    turn: int


class _Simulation:
    """One step on a virtual clock.

    delays: node -> seconds by which its start is delayed while its device has other work. wait: see ``WAIT``. A wait is
    simulated in hindsight: if a nearer node is ready early enough, the running node is treated as never started.
    """

    def __init__(self, work: _Work, delays: Mapping[str, float], wait: float) -> None:
        self.work = work
        self.delays = delays
        self.wait = wait
        self.missing = {name: len(before) for name, before in work.before.items()}
        self.available: dict[str, float] = defaultdict(float)
        self.events: list[tuple[float, int, int, str]] = []  # (time, graph order, kind, node)
        self.ready: dict[str, list[tuple[tuple[float, bool, int], str]]] = defaultdict(list)  # device -> (rank, node)
        self.delayed: dict[str, dict[str, float]] = defaultdict(dict)  # device -> node -> end of its delay
        self.running: dict[str, _Running] = {}
        self.link_free: dict[tuple[str, str], float] = defaultdict(float)
        self.starts: dict[str, float] = {}
        self.turns: dict[str, int] = {}
        self.started = 0

    def run(self) -> dict[str, float]:
        for name, count in self.missing.items():
            if count == 0:
                self._expect(name, 0.0, _ARRIVAL)
        while self.events:
            now, touched = self.events[0][0], set()
            while self.events and self.events[0][0] == now:
                _, _, kind, name = heapq.heappop(self.events)
                device = self.work.graph.nodes[name].device
                touched.add(device)
                self._happen(device, name, kind, now)
            for device in sorted(touched):
                self._choose(device, now)
        return dict(sorted(self.starts.items(), key=lambda item: (item[1], self.turns[item[0]])))

    def _expect(self, name: str, time: float, kind: int) -> None:
        heapq.heappush(self.events, (time, self.work.index[name], kind, name))

    def _happen(self, device: str, name: str, kind: int, now: float) -> None:
        running = self.running.get(device)
        if kind == _END:
            # If the node was stopped after its end was queued, this event is outdated.
            if running is not None and running.name == name and running.end == now:
                del self.running[device]
                self._end(running)
        elif kind == _ARRIVAL and self.delays.get(name):
            self.delayed[device][name] = now + self.delays[name]
            self._expect(name, now + self.delays[name], _DELAY_OVER)
        elif kind == _ARRIVAL or self.delayed[device].pop(name, None) is not None:
            heapq.heappush(self.ready[device], (self.work.rank[name], name))

    def _choose(self, device: str, now: float) -> None:
        """Start the nearest ready node, else the delayed node that is due first, unless a running node continues."""
        ready, delayed, running = self.ready[device], self.delayed[device], self.running.get(device)
        if running is not None:
            rank = self.work.rank[running.name]
            long_ago = now - running.begin > self.wait * (running.end - running.begin)
            if not ready or rank <= ready[0][0] or long_ago:
                return
            heapq.heappush(ready, (rank, running.name))
        if ready:
            name = heapq.heappop(ready)[1]
        elif delayed:
            name = min(delayed, key=delayed.__getitem__)
            del delayed[name]
        else:
            return
        nodes = [each for each in (*self.work.receives[name], name) if each not in self.starts]
        end = now + sum(self.work.seconds[each] for each in nodes)
        self.running[device] = _Running(name, now, end, self.started)
        self.started += 1
        self._expect(name, end, _END)

    def _end(self, ended: _Running) -> None:
        """Record the start of a node and, directly before it, of those of its Recvs that have not run yet."""
        start = ended.begin
        for each in (*self.work.receives[ended.name], ended.name):
            if each not in self.starts:
                self.starts[each], self.turns[each] = start, ended.turn
                start += self.work.seconds[each]
        self._release_readers(ended.name, ended.end)

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
                self._expect(reader, self.available[reader], _ARRIVAL)

    def _arrival(self, recv: Node, sent: float) -> float:
        """Return the arrival time of a tensor that is sent at ``sent``; its link carries one tensor at a time."""
        link = self.work.link(recv)
        self.link_free[link] = max(sent, self.link_free[link]) + self.work.occupied_s(recv)
        return self.link_free[link] + self.work.cluster.latency_s
