"""The pipeline of passes: from a graph and a signature to one scheduled graph and one plan per device."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial

from runner.engine.compile.cost import Seconds, node_seconds
from runner.engine.compile.passes.lower_collectives import gathered, lower_collectives
from runner.engine.compile.passes.optimize import COMPRESSION, Observer, Pass, default_passes, optimize
from runner.engine.compile.passes.order_writes import order_writes
from runner.engine.compile.passes.recomputation import recompute_activations
from runner.engine.compile.passes.rewriting import Roots
from runner.engine.compile.passes.simplification import prune
from runner.engine.compile.passes.transfers import insert_transfers
from runner.engine.compile.placement import DeviceTypes, place
from runner.engine.compile.planner import Part
from runner.engine.compile.program import Signature
from runner.engine.compile.schedule import schedule, split
from runner.engine.graph import Cluster, Graph, Tensor
from runner.engine.graph import op as op_table
from runner.engine.graph.graph import without_collection
from runner.kernels.registry import Registry


@dataclass(frozen=True)
class Compiled:
    """A compiled signature, split by device.

    location: fetched tensor -> the device that computes it, and the tensor in that device's graph. starts: node name ->
    simulated start in seconds since the step began. step_s: simulated end of the last node.
    """

    parts: Mapping[str, Part]
    location: Mapping[Tensor, tuple[str, Tensor]]
    starts: Mapping[str, float]
    step_s: float


def compile_signature(
    graph: Graph,
    signature: Signature,
    cluster: Cluster,
    registry: Registry,
    observe: Observer | None = None,
    seconds: Seconds = node_seconds,
) -> Compiled:
    """Place ``graph`` and compile it for one signature.

    observe: receives the name and the result of every pass, so that tests can verify each graph. seconds: returns the
    duration of a node, for placement and scheduling.
    """
    placed = place(graph, cluster, device_types(registry), seconds)
    if observe is not None:
        observe("place", placed)
    return compile_placed(placed, signature, cluster, registry, observe, seconds)


@without_collection()
def compile_placed(
    placed: Graph,
    signature: Signature,
    cluster: Cluster,
    registry: Registry,
    observe: Observer | None = None,
    seconds: Seconds = node_seconds,
) -> Compiled:
    """Prune and optimize a placed graph, insert transfers, recompute activations, schedule and split the graph.

    See :func:`compile_signature`.
    """

    def seen(name: str, result: Graph) -> Graph:
        if observe is not None:
            observe(name, result)
        return result

    pruned, fed = prune(placed, signature.fetches, signature.targets, signature.feeds)
    roots = Roots.of([fed.get(tensor, tensor) for tensor in signature.fetches], signature.targets)
    # Earlier passes may merge or remove sums, but a sum must be collective on all devices or on none.
    passes = [*default_passes(registry)]
    if cluster.members:
        passes.append(Pass("collectives", partial(lower_collectives, members=cluster.members)))
    if cluster.compression == "high16" and not signature.exact:
        passes.append(COMPRESSION)
    optimized, moved = optimize(seen("prune", pruned), roots, passes, observe)
    cut = seen("transfers", insert_transfers(optimized))
    lean = seen("recomputation", recompute_activations(cut, roots.after(moved).fetches))
    ordered = seen("writes", order_writes(lean))
    starts, step_s = schedule(ordered, cluster, seconds)
    graphs = split(ordered, gathered(ordered, list(starts)))
    for device, part in graphs.items():
        seen(f"split {device}", part)
    location = {}
    for tensor in signature.fetches:
        carrier = fed.get(tensor, tensor)
        local = moved.get(carrier, carrier)
        location[tensor] = (optimized.nodes[local.node].device, local)
    parts = {
        device: Part(
            part,
            tuple(dict.fromkeys(local for owner, local in location.values() if owner == device)),
            {tensor: local for tensor, local in fed.items() if local.node in part},
        )
        for device, part in graphs.items()
    }
    return Compiled(parts, location, starts, step_s)


def device_types(registry: Registry) -> DeviceTypes:
    """Return a function: node -> the device types that have a kernel for it, or None if the node needs no kernel."""

    @cache
    def types_for(op: str) -> frozenset[str] | None:
        return None if op_table.lookup(op).executed_by == "executor" else registry.device_types(op)

    return lambda node: types_for(node.op)
