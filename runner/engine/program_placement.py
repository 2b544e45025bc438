"""The placement of a program that leaves devices open: found once, for its training step, and held for all clients.

Several placements are tried: everything on one device, the whitepaper's greedy heuristic, and stages. Each is compiled
by the passes of a run, its step is simulated by the scheduler, and the fastest is kept: the greedy one alone can be
slower than one device, because it decides a group before it knows what that makes others send.

The seconds that a placement is chosen by are the caller's, formulas or measured costs. The order of nodes in the run
always comes of the formulas: with measured costs it can be another than the simulated one, and so can its time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.engine.compile import compile_signature, device_types
from runner.engine.cost import Seconds, node_seconds
from runner.engine.device import Cluster, Device
from runner.engine.graph import Graph
from runner.engine.passes.earliest_finish import earliest_finish
from runner.engine.passes.placement import Groups, colocation_groups, put
from runner.engine.passes.rewriting import needed_by
from runner.engine.passes.stages import stages
from runner.engine.program import Client, Program
from runner.kernels.registry import Registry

Feasible = Mapping[str, Sequence[str]]
"""The devices to choose from for each group."""

GIVEN = "given"
"""How a placement was found that left no choice."""


@dataclass(frozen=True)
class PlacedProgram:
    """A program with a full device name on every node.

    found_by: the way whose placement is kept. tried: way -> simulated seconds of a training step.
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
    """Place a program; seconds: what a node takes.

    Never slower, as simulated, than everything on one device where that is feasible; of equals the first tried is
    taken, one device before others. Raises PlacementError where no device satisfies what is asked.
    """
    graph, train = program.graph, program.clients["train"]
    groups = colocation_groups(graph, cluster, device_types(registry))
    trained = _needed_by_client(graph, train)
    tried: dict[str, float] = {}
    choices = {}
    for way, choices[way] in _ways(trained, cluster, groups, seconds):
        placed = put(trained, groups, choices[way])
        tried[way] = compile_signature(placed, train.signature, cluster, registry, seconds=seconds).step_s
    best = min(tried, key=tried.__getitem__)
    whole = earliest_finish(graph, cluster, groups.of, _narrowed(groups.feasible, choices[best]), seconds)
    return PlacedProgram(replace(program, graph=put(graph, groups, whole)), best, tried)


def _ways(graph: Graph, cluster: Cluster, groups: Groups, seconds: Seconds) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield names of placements, and for each the device of every group of the graph."""
    feasible = {group: groups.feasible[group] for group in dict.fromkeys(groups.of[name] for name in graph.nodes)}
    computing = {groups.of[node.name] for node in graph if needed_by(node)}
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
        yield f"stages_{count}", earliest_finish(graph, cluster, groups.of, _narrowed(feasible, choice), seconds)


def _rates(device: Device) -> tuple[str, float, float]:
    """What tells devices apart to the cost model."""
    return device.type, device.flops_per_s, device.bytes_per_s


def _narrowed(feasible: Feasible, choice: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """What is feasible where some groups have been decided."""
    return {**feasible, **{group: [device] for group, device in choice.items()}}


def _needed_by_client(graph: Graph, client: Client) -> Graph:
    """The part of a graph that a client runs or feeds, in its order."""
    signature = client.signature
    stack = [*(tensor.node for tensor in (*signature.fetches, *signature.feeds)), *signature.targets]
    needed = set(stack)
    while stack:
        for name in needed_by(graph.nodes[stack.pop()]):
            if name not in needed:
                needed.add(name)
                stack.append(name)
    part = Graph()
    for node in graph:
        if node.name in needed:
            part.insert(replace(node, colocate_with=tuple(name for name in node.colocate_with if name in needed)))
    return part
