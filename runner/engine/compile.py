"""From a graph and a signature to the per-device graphs that are executed: the pipeline of passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runner.engine import op as op_table
from runner.engine.device import Cluster
from runner.engine.graph import Graph, Node
from runner.engine.passes.optimize import COMPRESSION, Pass, default_passes, optimize
from runner.engine.passes.order_writes import order_writes
from runner.engine.passes.placement import place
from runner.engine.passes.prune import prune
from runner.engine.passes.rewriting import Roots
from runner.engine.passes.schedule import split, start_times
from runner.engine.passes.transfers import insert_transfers
from runner.engine.plan import DevicePlan
from runner.engine.planner import plan_device
from runner.engine.tensor import Tensor
from runner.kernels.registry import Layout, Registry

Observer = Callable[[str, Graph], None]


@dataclass(frozen=True)
class Signature:
    """What is asked of a graph: tensors to fetch, nodes to run, tensors to feed. Plans are cached by it.

    exact: no bit may be lost on a wire, whatever the cluster's compression.
    """

    fetches: tuple[Tensor, ...] = ()
    targets: tuple[str, ...] = ()
    feeds: tuple[Tensor, ...] = ()
    exact: bool = False


@dataclass(frozen=True)
class Part:
    """One device's share of a signature: its scheduled graph, what is fetched there, and where feeds enter."""

    graph: Graph
    fetches: tuple[Tensor, ...]
    feeds: Mapping[Tensor, Tensor]

    def plan(self, device: str, registry: Registry, settled: Mapping[str, Layout]) -> DevicePlan:
        """The device's plan; a pure function, so that every process derives the same one.

        settled: layouts of variables that are decided already.
        """
        return plan_device(device, self.graph, self.fetches, self.feeds, registry, settled)


@dataclass(frozen=True)
class Compiled:
    """A signature, cut by device.

    location: where and under which name each fetch is found. starts: node name -> seconds into the step at which the
    simulation that gave the order let it start.
    """

    parts: Mapping[str, Part]
    location: Mapping[Tensor, tuple[str, Tensor]]
    starts: Mapping[str, float]


def compile_signature(
    graph: Graph,
    signature: Signature,
    cluster: Cluster,
    registry: Registry,
    observe: Observer | None = None,
) -> Compiled:
    """Place ``graph`` and compile it for one signature.

    The whole graph is placed first, whatever is asked of it, so that a variable lives on the same device for every
    signature. observe: called with the name and the result of every pass; tests verify the graph there.
    """
    placed = placed_graph(graph, cluster, registry)
    if observe is not None:
        observe("place", placed)
    return compile_placed(placed, signature, cluster, registry, observe)


def placed_graph(graph: Graph, cluster: Cluster, registry: Registry) -> Graph:
    """The graph with a device for every node; the same for all signatures."""
    return place(graph, cluster, lambda node: _device_types(node, registry))


def compile_placed(
    placed: Graph,
    signature: Signature,
    cluster: Cluster,
    registry: Registry,
    observe: Observer | None = None,
) -> Compiled:
    """Prune, optimize, cut, schedule and split a graph that is placed; see :func:`compile_signature`."""

    def seen(name: str, result: Graph) -> Graph:
        if observe is not None:
            observe(name, result)
        return result

    pruned, moved = prune(placed, signature.fetches, signature.targets, signature.feeds)
    roots = Roots.of([moved.get(tensor, tensor) for tensor in signature.fetches], signature.targets)
    passes = (*default_passes(registry), *_compression(cluster, signature))
    optimized, gone_to = optimize(seen("prune", pruned), roots, passes, observe)
    cut = seen("transfers", insert_transfers(optimized))
    ordered = seen("writes", order_writes(cut))
    starts = start_times(ordered, cluster)
    graphs = split(ordered, list(starts))
    for device, part in graphs.items():
        seen(f"split {device}", part)
    location = {}
    for tensor in signature.fetches:
        carrier = moved.get(tensor, tensor)
        local = gone_to.get(carrier, carrier)
        location[tensor] = (optimized.nodes[local.node].device, local)
    parts = {
        device: Part(
            part,
            tuple(dict.fromkeys(local for owner, local in location.values() if owner == device)),
            {fed: local for fed, local in moved.items() if local.node in part},
        )
        for device, part in graphs.items()
    }
    return Compiled(parts, location, starts)


def _compression(cluster: Cluster, signature: Signature) -> tuple[Pass, ...]:
    return (COMPRESSION,) if cluster.compression == "high16" and not signature.exact else ()


def _device_types(node: Node, registry: Registry) -> frozenset[str] | None:
    if op_table.lookup(node.op).executed_by == "executor":
        return None
    return registry.device_types(node.op)
