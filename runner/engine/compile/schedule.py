"""The order in which each device runs its nodes: list scheduling on a virtual clock.

The cost model simulates all devices and links together; each link carries one tensor at a time. Of the nodes whose
inputs have arrived, a free device runs the node that is nearest, in estimated seconds, to a following Send. So the
gradient of a layer is sent as soon as it exists. Of equally near nodes, an update of a variable runs first, because
the update needs no additional memory and frees a gradient. Remaining ties follow the order of the graph.

A device may wait for a nearer node whose input arrives soon, instead of starting a long node. Otherwise a chain of
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
from typing import NamedTuple

from runner.engine.compile.cost import Seconds, node_seconds
from runner.engine.graph import Cluster, Graph, Node

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
    return {work.nodes[node].name: start for node, start in starts.items()}, work.end(starts)


def _start_times(work: "_Work") -> dict[int, float]:
    """Return node -> start, sorted by the starts."""
    starts = _Simulation(work, {}, wait=0.0).run()
    if not any(work.receives):
        return starts
    waiting, wait = _Simulation(work, {}, wait=WAIT).run(), 0.0
    if LONGER * work.end(waiting) < work.end(starts):
        starts, wait = waiting, WAIT
    slack = _slack(work, starts)
    for part in PATIENCE:
        patient = _Simulation(work, {node: part * each for node, each in slack.items()}, wait).run()
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
            node = node.changed(control_inputs=local, colocate_with=())
        from_device.setdefault(node.device, []).append(node)
    return {device: Graph.of(nodes) for device, nodes in from_device.items()}


def _slack(work: "_Work", starts: dict[int, float]) -> dict[int, float]:
    """Return the slack in seconds of nodes that read received tensors and precede a Send."""
    latest = _latest_starts(work, starts)
    return {
        node: max(0.0, latest[node] - starts[node])
        for node, receives in enumerate(work.receives)
        if receives and work.to_send[node] < math.inf
    }


def _latest_starts(work: "_Work", starts: dict[int, float]) -> dict[int, float]:
    """Return each node's latest start that does not make the step longer, assuming that devices are always free.

    Links may be busy: each carries its tensors in the order of their Recvs in ``starts``, which is sorted by time.
    """
    end = work.end(starts)
    latest: dict[int, float] = {}
    taken: dict[tuple[str, str], float] = defaultdict(lambda: math.inf)
    for node in reversed(starts):
        latest[node] = min((latest[reader] for reader in work.readers[node]), default=end) - work.seconds[node]
        if node in work.links:
            link, occupied_s = work.links[node]
            there = min(latest[node] - work.latency_s, taken[link])
            latest[node] = taken[link] = there - occupied_s
    return latest


class _Work:
    """The nodes of a step with their durations and dependencies. A node is represented by its position in the graph.

    receives: the Recvs that a node needs. readers: the nodes that need a node. needed: number of nodes that a node
    needs. seconds: duration of each node on its device. links: for each Recv, its link (the source device and its own
    device) and the seconds for which the tensor occupies the link. to_send: seconds from the start of a node to the
    start of the next Send, on a path without waiting; inf if no Send follows. by_rank: the nodes in the order in which
    a free device prefers them; rank: the position of each node in this order.
    """

    def __init__(self, graph: Graph, cluster: Cluster, seconds: Seconds) -> None:
        self.latency_s = cluster.latency_s
        self.nodes = list(graph)
        devices = {name: cluster.device(name) for name in {node.device for node in graph}}
        self.devices = [node.device for node in graph]
        self.seconds = [seconds(graph, node, devices[node.device]) for node in graph]
        self.links = {
            position: ((node.attributes["source"], node.device), node.outputs[0].nbytes / cluster.bytes_per_s)
            for position, node in enumerate(graph)
            if node.op == "recv"
        }
        before = [[graph.position(name) for name in dict.fromkeys(node.needed)] for node in graph]
        self.needed = list(map(len, before))
        self.receives = [[each for each in needed if each in self.links] for needed in before]
        self.readers: list[list[int]] = [[] for _ in before]
        for node, needed in enumerate(before):
            for each in needed:
                self.readers[each].append(node)
        self.to_send = [0.0] * len(before)
        for node in reversed(range(len(before))):
            if self.nodes[node].op != "send":
                onward = min((self.to_send[reader] for reader in self.readers[node]), default=math.inf)
                self.to_send[node] = onward + self.seconds[node]
        # Sorting is stable: nodes of equal ranks stay in the order of the graph.
        self.by_rank = sorted(range(len(before)), key=lambda node: (self.to_send[node], not self._only_updates(node)))
        self.rank = [0] * len(before)
        for rank, node in enumerate(self.by_rank):
            self.rank[node] = rank

    def end(self, starts: Mapping[int, float]) -> float:
        """Return the end of the last node in seconds."""
        return max((start + self.seconds[node] for node, start in starts.items()), default=0.0)

    def _only_updates(self, node: int) -> bool:
        """Return whether a node is an assign, or computes only assigned values."""
        readers = self.readers[node]
        return self.nodes[node].op == "assign" or (
            bool(readers) and all(self.nodes[reader].op == "assign" for reader in readers)
        )


_ARRIVAL, _DELAY_OVER, _END = range(3)
"""Kinds of events of a node: its inputs have arrived, its delay is over, it ends."""


class _Running(NamedTuple):
    """A node that a device runs, from ``begin`` to ``end`` in seconds. turn: number of nodes started before it."""

    node: int
    begin: float
    end: float
    turn: int


class _Simulation:
    """One step on a virtual clock.

    delays: node -> seconds by which its start is delayed while its device has other work. wait: see ``WAIT``. A wait is
    simulated in hindsight: if a nearer node is ready early enough, the running node is treated as never started.
    """

    def __init__(self, work: _Work, delays: Mapping[int, float], wait: float) -> None:
        self.work = work
        self.delays = delays
        self.wait = wait
        self.missing = list(work.needed)
        self.available = [0.0] * len(work.nodes)
        self.events: list[tuple[float, int, int]] = []  # (time, node, kind)
        self.ready: dict[str, list[int]] = {device: [] for device in work.devices}  # ranks of nodes
        self.delayed: dict[str, dict[int, float]] = {device: {} for device in work.devices}  # node -> end of its delay
        self.running: dict[str, _Running] = {}
        self.link_free: dict[tuple[str, str], float] = defaultdict(float)
        self.starts: dict[int, float] = {}
        self.turns: dict[int, int] = {}
        self.started = 0

    def run(self) -> dict[int, float]:
        """Return node -> start in seconds, sorted by the starts and then by the order in which nodes were started."""
        self.events = [(0.0, node, _ARRIVAL) for node, count in enumerate(self.missing) if count == 0]
        while self.events:
            now, touched = self.events[0][0], set()
            while self.events and self.events[0][0] == now:
                _, node, kind = heapq.heappop(self.events)
                device = self.work.devices[node]
                touched.add(device)
                self._handle(device, node, kind, now)
            for device in sorted(touched):
                self._choose(device, now)
        return dict(sorted(self.starts.items(), key=lambda item: (item[1], self.turns[item[0]])))

    def _handle(self, device: str, node: int, kind: int, now: float) -> None:
        if kind == _END:
            running = self.running.get(device)
            # If the node was stopped after its end was queued, this event is outdated.
            if running is not None and running.node == node and running.end == now:
                del self.running[device]
                self._end(running)
        elif kind == _ARRIVAL and self.delays.get(node):
            self.delayed[device][node] = now + self.delays[node]
            heapq.heappush(self.events, (now + self.delays[node], node, _DELAY_OVER))
        elif kind == _ARRIVAL or self.delayed[device].pop(node, None) is not None:
            heapq.heappush(self.ready[device], self.work.rank[node])

    def _choose(self, device: str, now: float) -> None:
        """Start the nearest ready node, else the delayed node that is due first, unless a running node continues."""
        ready, delayed, running = self.ready[device], self.delayed[device], self.running.get(device)
        if running is not None:
            rank = self.work.rank[running.node]
            long_ago = now - running.begin > self.wait * (running.end - running.begin)
            if not ready or rank <= ready[0] or long_ago:
                return
            heapq.heappush(ready, rank)
        if ready:
            node = self.work.by_rank[heapq.heappop(ready)]
        elif delayed:
            node = min(delayed, key=delayed.__getitem__)
            del delayed[node]
        else:
            return
        first = sum(self.work.seconds[each] for each in self.work.receives[node] if each not in self.starts)
        end = now + (first + self.work.seconds[node])
        self.running[device] = _Running(node, now, end, self.started)
        self.started += 1
        heapq.heappush(self.events, (end, node, _END))

    def _end(self, ended: _Running) -> None:
        """Record the start of a node, preceded by the starts of its Recvs that have not run yet."""
        start = ended.begin
        for each in (*self.work.receives[ended.node], ended.node):
            if each not in self.starts:
                self.starts[each], self.turns[each] = start, ended.turn
                start += self.work.seconds[each]
        self._release_readers(ended.node, ended.end)

    def _release_readers(self, node: int, finished: float) -> None:
        for reader in self.work.readers[node]:
            arrival = self._arrival(reader, finished) if reader in self.work.links else finished
            self.available[reader] = max(self.available[reader], arrival)
            self.missing[reader] -= 1
            if self.missing[reader] > 0:
                continue
            if reader in self.work.links and self.work.readers[reader]:
                self._release_readers(reader, self.available[reader])
            else:
                heapq.heappush(self.events, (self.available[reader], reader, _ARRIVAL))

    def _arrival(self, recv: int, sent: float) -> float:
        """Return the arrival time of a tensor that is sent at ``sent``; its link carries one tensor at a time."""
        link, occupied_s = self.work.links[recv]
        self.link_free[link] = max(sent, self.link_free[link]) + occupied_s
        return self.link_free[link] + self.work.latency_s
