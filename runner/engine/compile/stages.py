"""Stages of a pipeline: groups of nodes in the order of the graph, cut into consecutive runs, one for each device.

The greedy placement decides one group after the other. So it misses that a chain of layers is balanced best by few
cuts, each where little has to be sent.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from runner.engine.compile.cost import Seconds
from runner.engine.compile.passes.rewriting import needed_by
from runner.engine.graph.device import Cluster
from runner.engine.graph.graph import Graph


def stages(
    graph: Graph, cluster: Cluster, groups: Mapping[str, str], feasible: Mapping[str, Sequence[str]], seconds: Seconds
) -> list[dict[str, str]]:
    """Return a choice of devices, group -> device name, for each number of stages from 2 to the number of devices.

    Groups are in the order of their first nodes with inputs; groups of sources only are left out. Stage k is on device
    k; a group that cannot be there is on its first feasible device. The cost of a stage is its compute, as on the first
    device, and the transfers at its beginning, both ways; the largest cost of a stage is minimal. With G groups and D
    devices this takes O(D^2 G^2) time.
    """
    order = list(dict.fromkeys(groups[node.name] for node in graph if needed_by(node)))
    compute = _seconds_of(graph, cluster, groups, order, seconds)
    wire = _seconds_at_cuts(graph, cluster, groups, order)
    found = []
    for count in range(2, min(len(cluster.devices), len(order)) + 1):
        choice = {}
        for device, (begin, end) in zip(cluster.devices, pairwise(_best_cuts(compute, wire, count)), strict=False):
            for group in order[begin:end]:
                choice[group] = device.name if device.name in feasible[group] else feasible[group][0]
        found.append(choice)
    return found


def _seconds_of(
    graph: Graph, cluster: Cluster, groups: Mapping[str, str], order: Sequence[str], seconds: Seconds
) -> list[float]:
    """Return the seconds of compute of each group."""
    total: dict[str, float] = defaultdict(float)
    for node in graph:
        total[groups[node.name]] += seconds(graph, node, cluster.devices[0])
    return [total[group] for group in order]


def _seconds_at_cuts(graph: Graph, cluster: Cluster, groups: Mapping[str, str], order: Sequence[str]) -> list[float]:
    """Return the seconds of the transfers over a cut before each group; each tensor counts once."""
    position = {group: i for i, group in enumerate(order)}
    change = [0.0] * (len(order) + 1)
    for tensor, readers in graph.consumers().items():
        if groups[tensor.node] not in position:
            continue
        places = [position[groups[name]] for name in (tensor.node, *(node.name for node in readers))]
        # A cut before group c separates the places below c from c and the places above.
        change[min(places) + 1] += cluster.transfer_s(graph.spec(tensor).nbytes)
        change[max(places) + 1] -= cluster.transfer_s(graph.spec(tensor).nbytes)
    return list(accumulate(change))[:-1]


def _best_cuts(compute: Sequence[float], wire: Sequence[float], count: int) -> list[int]:
    """Return the edges of ``count`` non-empty runs, from 0 to the number of groups, that minimize the largest cost."""
    total = [0.0, *accumulate(compute)]
    groups = len(compute)
    slowest = [total[end] for end in range(groups + 1)]
    previous: list[list[int]] = []
    for run in range(1, count):
        best, begins = [float("inf")] * (groups + 1), [0] * (groups + 1)
        for end in range(run + 1, groups + 1):
            for begin in range(run, end):
                time = max(slowest[begin], wire[begin] + total[end] - total[begin])
                if time < best[end]:
                    best[end], begins[end] = time, begin
        slowest = best
        previous.append(begins)
    edges = [groups]
    for begins in reversed(previous):
        edges.append(begins[edges[-1]])
    return [0, *reversed(edges)]
