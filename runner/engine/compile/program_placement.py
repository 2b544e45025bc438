"""Place a program with partial device names; all clients use the placement chosen for the training step.

Several placements are tried: all nodes on one device, the greedy heuristic of the TensorFlow whitepaper, and stages.
Each placement is compiled as for a run, the scheduler simulates the step, and the fastest placement is kept. The greedy
placement can be slower than one device, because a group is placed before the resulting transfers are known. For a
chain of layers, stages are often faster: a few cuts, at points where little data is sent, divide the chain.

The caller chooses the node durations for the simulation: cost formulas or measured times. The order of nodes in the run
is always based on the formulas. So with measured times, the order in the run may differ from the simulated order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from runner.engine.compile.compile import compile_signature, device_types
from runner.engine.compile.cost import NOT_EXECUTED, Seconds, node_seconds
from runner.engine.compile.earliest_finish import earliest_finish
from runner.engine.compile.passes.rewriting import needed_part
from runner.engine.compile.placement import Groups, colocation_groups, put
from runner.engine.compile.program import Program
from runner.engine.graph import Cluster, Device, Graph, Node
from runner.kernels.registry import Registry

GIVEN = "given"
"""Name of the only placement if the constraints of the graph leave no choice."""


@dataclass(frozen=True)
class PlacedProgram:
    """A program with a full device name on every node.

    found_by: the name of the kept placement. tried: name of a placement -> simulated seconds of a training step.
    """

    program: Program
    found_by: str
    tried: Mapping[str, float]

    @property
    def step_s(self) -> float:
        """Simulated seconds of a training step."""
        return self.tried[self.found_by]


def place_program(
    program: Program, cluster: Cluster, registry: Registry, seconds: Seconds = node_seconds
) -> PlacedProgram:
    """Return the program with the fastest of several placements. seconds: returns the duration of a node on a device.

    If all nodes can run on one device, the simulated step is never longer than on that device. Of equally fast
    placements, the first is kept; placements on one device are tried first. Raises PlacementError if no device
    satisfies the constraints of a node.
    """
    graph, signature = program.graph, program.clients["train"].signature
    groups = colocation_groups(graph, cluster, device_types(registry))
    trained = needed_part(graph, (*(t.node for t in (*signature.fetches, *signature.feeds)), *signature.targets))
    tried: dict[str, float] = {}
    choices = {}
    for way, choices[way] in _ways(trained, cluster, groups, seconds):
        placed = put(trained, groups, choices[way])
        tried[way] = compile_signature(placed, signature, cluster, registry, seconds=seconds).step_s
    best = min(tried, key=tried.__getitem__)
    whole = earliest_finish(graph, cluster, groups.of, _decided(groups.feasible, choices[best]), seconds)
    return PlacedProgram(replace(program, graph=put(graph, groups, whole)), best, tried)


def _ways(graph: Graph, cluster: Cluster, groups: Groups, seconds: Seconds) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name of each placement to try, and the device of every group in it."""
    feasible = {group: groups.feasible[group] for group in dict.fromkeys(groups.of[name] for name in graph.nodes)}
    computing = {groups.of[node.name] for node in graph if node.needed}
    if all(len(feasible[group]) == 1 for group in computing):
        yield GIVEN, {group: devices[0] for group, devices in feasible.items()}
        return
    everywhere = all(len(devices) == len(cluster.devices) for devices in feasible.values())
    alike: set[tuple[str, float, float]] = set()
    for k, device in enumerate(cluster.devices):
        if everywhere and _rates(device) in alike:
            continue
        alike.add(_rates(device))
        preferred = {g: device.name if device.name in devices else devices[0] for g, devices in feasible.items()}
        yield f"one_device_{k}", preferred
    yield "greedy", earliest_finish(graph, cluster, groups.of, feasible, seconds)
    for count, choice in enumerate(stages(graph, cluster, groups.of, feasible, seconds), start=2):
        yield f"stages_{count}", earliest_finish(graph, cluster, groups.of, _decided(feasible, choice), seconds)


def _rates(device: Device) -> tuple[str, float, float]:
    """Return the properties by which the cost model distinguishes devices."""
    return device.type, device.flops_per_s, device.bytes_per_s


def _decided(feasible: Mapping[str, Sequence[str]], choice: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """Return the feasible devices of all groups; groups in ``choice`` have only their chosen device."""
    return {**feasible, **{group: [device] for group, device in choice.items()}}


_LEAST_KNOWN = 0.75
"""Smallest fraction of the nodes that a record of node times must contain. A few nodes may be missing, because fusions
differ between one and several devices. In a record of another network, most nodes are missing."""


def measured_seconds(measured: Mapping[str, float], program: Program, cluster: Cluster, registry: Registry) -> Seconds:
    """Return a function for node durations, based on a measured step of this network with equally divided batches.

    measured: node name -> seconds. For nodes that the record lacks (fused nodes, transfers, nodes of other strategies),
    the duration is the estimate times the ratio of measured to estimated seconds of all recorded nodes. Raises
    ValueError if the record lacks more than a quarter of the nodes that one device would compute.
    """
    device = cluster.devices[0]
    alone = Graph.of(node.changed(device=device.name, colocate_with=()) for node in program.graph)
    compiled = compile_signature(alone, program.clients["train"].signature, cluster, registry)
    # The record has the names of the nodes of a step on one device.
    graph = compiled.parts[device.name].graph
    computed = [node for node in graph if node.op not in NOT_EXECUTED]
    known = [node for node in computed if node.name in measured]
    if len(known) < _LEAST_KNOWN * len(computed):
        raise ValueError(f"found durations of {len(known)} of {len(computed)} nodes of a step, expected at least 75 %")
    estimated = sum(node_seconds(graph, node, device) for node in known)
    scale = sum(measured[node.name] for node in known) / estimated

    def seconds(graph: Graph, node: Node, device: Device) -> float:
        found = measured.get(node.name) if node.op not in NOT_EXECUTED else 0.0
        return scale * node_seconds(graph, node, device) if found is None else found

    return seconds


def stages(
    graph: Graph, cluster: Cluster, groups: Mapping[str, str], feasible: Mapping[str, Sequence[str]], seconds: Seconds
) -> list[dict[str, str]]:
    """Return a choice of devices, group -> device name, for each number of stages from 2 to the number of devices.

    Groups in which no node has inputs are omitted; the others are ordered by their first nodes with inputs. Stage k is
    on device k; a group that cannot run there is on its first feasible device. The cost of a stage is the compute time
    on the first device plus the time of the transfers, in both directions, across the cut before the stage. The cuts
    minimize the largest cost. With G groups and D devices, the search takes O(D^2 G^2) time.
    """
    order = list(dict.fromkeys(groups[node.name] for node in graph if node.needed))
    seconds_of = dict.fromkeys(order, 0.0)
    for node in graph:
        if groups[node.name] in seconds_of:
            seconds_of[groups[node.name]] += seconds(graph, node, cluster.devices[0])
    compute = list(seconds_of.values())
    wire = _seconds_at_cuts(graph, cluster, groups, order)
    found = []
    for count in range(2, min(len(cluster.devices), len(order)) + 1):
        choice = {}
        for device, (begin, end) in zip(cluster.devices, pairwise(_best_cuts(compute, wire, count)), strict=False):
            for group in order[begin:end]:
                choice[group] = device.name if device.name in feasible[group] else feasible[group][0]
        found.append(choice)
    return found


def _seconds_at_cuts(graph: Graph, cluster: Cluster, groups: Mapping[str, str], order: Sequence[str]) -> list[float]:
    """Return the seconds of the transfers across a cut before each group; each tensor counts once per cut."""
    position = {group: i for i, group in enumerate(order)}
    change = [0.0] * (len(order) + 1)
    for tensor, readers in graph.consumers().items():
        if groups[tensor.node] not in position:
            continue
        places = [position[groups[name]] for name in (tensor.node, *(node.name for node in readers))]
        # A cut before position c separates the groups at positions below c from the other groups.
        change[min(places) + 1] += cluster.transfer_s(graph.spec(tensor).nbytes)
        change[max(places) + 1] -= cluster.transfer_s(graph.spec(tensor).nbytes)
    return list(accumulate(change))[:-1]


def _best_cuts(compute: Sequence[float], wire: Sequence[float], count: int) -> list[int]:
    """Return the ``count`` + 1 boundaries of non-empty stages that minimize the largest cost of a stage."""
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
