"""The pipeline of passes: from a graph and a signature to one scheduled graph per device, and its plan."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from runner.engine.compile.cost import Seconds, node_seconds
from runner.engine.compile.layouts import arrange
from runner.engine.compile.memory import assign_memory
from runner.engine.compile.passes.lower_collectives import gathered, lower_collectives
from runner.engine.compile.passes.optimize import COMPRESSION, Observer, Pass, default_passes, optimize
from runner.engine.compile.passes.order_writes import UPDATES, order_writes
from runner.engine.compile.passes.rewriting import Roots, needed_by
from runner.engine.compile.passes.simplification import prune
from runner.engine.compile.passes.transfers import insert_transfers
from runner.engine.compile.placement import DeviceTypes, place
from runner.engine.compile.plan import DevicePlan
from runner.engine.compile.schedule import end_of, split, start_times
from runner.engine.graph import op as op_table
from runner.engine.graph.device import Cluster, DeviceName
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Node, Tensor
from runner.kernels.contract import Layout
from runner.kernels.registry import Registry


@dataclass(frozen=True)
class Signature:
    """A request to a graph: tensors to fetch, nodes to run, tensors to feed. Plans are cached by signature.

    exact: transfers are not compressed, whatever the cluster's compression.
    """

    fetches: tuple[Tensor, ...] = ()
    targets: tuple[str, ...] = ()
    feeds: tuple[Tensor, ...] = ()
    exact: bool = False


@dataclass(frozen=True)
class Part:
    """The part of a signature on one device: its scheduled graph, its fetches, and fed tensor -> placeholder."""

    graph: Graph
    fetches: tuple[Tensor, ...]
    feeds: Mapping[Tensor, Tensor]

    def plan(self, device: str, registry: Registry, settled: Mapping[str, Layout]) -> DevicePlan:
        """Return the plan of the device; a pure function, so that every process computes the same plan.

        settled: layouts of variables that are already decided.
        """
        return plan_device(device, self.graph, self.fetches, self.feeds, registry, settled)


@dataclass(frozen=True)
class Compiled:
    """A signature, split by device.

    location: fetched tensor -> the device that has it, and its name there. starts: node name -> simulated start in
    seconds since the step began. step_s: simulated end of the last node.
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

    observe: receives the name and the result of every pass; tests verify the graph there. seconds: duration of a node,
    for placement and order.
    """
    placed = placed_graph(graph, cluster, registry, seconds)
    if observe is not None:
        observe("place", placed)
    return compile_placed(placed, signature, cluster, registry, observe, seconds)


def placed_graph(graph: Graph, cluster: Cluster, registry: Registry, seconds: Seconds = node_seconds) -> Graph:
    """Place the whole graph, so that a variable is on the same device for every signature."""
    return place(graph, cluster, device_types(registry), seconds)


def compile_placed(
    placed: Graph,
    signature: Signature,
    cluster: Cluster,
    registry: Registry,
    observe: Observer | None = None,
    seconds: Seconds = node_seconds,
) -> Compiled:
    """Prune, optimize, cut, schedule and split a placed graph for one signature; see :func:`compile_signature`."""

    def seen(name: str, result: Graph) -> Graph:
        if observe is not None:
            observe(name, result)
        return result

    pruned, moved = prune(placed, signature.fetches, signature.targets, signature.feeds)
    roots = Roots.of([moved.get(tensor, tensor) for tensor in signature.fetches], signature.targets)
    # Collectives come after all passes that join or drop nodes: a sum is on all devices or on none.
    passes = [*default_passes(registry)]
    if cluster.members:
        passes.append(Pass("collectives", partial(lower_collectives, members=cluster.members)))
    if cluster.compression == "high16" and not signature.exact:
        passes.append(COMPRESSION)
    optimized, gone_to = optimize(seen("prune", pruned), roots, passes, observe)
    cut = seen("transfers", insert_transfers(optimized))
    ordered = seen("writes", order_writes(cut))
    starts = start_times(ordered, cluster, seconds)
    graphs = split(ordered, gathered(ordered, list(starts)))
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
    return Compiled(parts, location, starts, end_of(ordered, starts, cluster, seconds))


def device_types(registry: Registry) -> DeviceTypes:
    """Return a function from a node to the device types that have a kernel for it; None for a node without kernel."""

    def types_for(node: Node) -> frozenset[str] | None:
        if op_table.lookup(node.op).executed_by == "executor":
            return None
        return registry.device_types(node.op)

    return types_for


LAUNCHING = frozenset({"gpu"})
"""Device types on which the launch of a kernel takes longer than a small kernel."""

SMALL_BYTES = 1 << 20
"""Size in bytes above which the update of a variable fills a GPU by itself."""


def plan_device(
    device: str,
    part: Graph,
    fetches: Sequence[Tensor],
    feeds: Mapping[Tensor, Tensor],
    registry: Registry,
    settled: Mapping[str, Layout],
) -> DevicePlan:
    """Return the plan of the scheduled graph of one device, in the order of the graph.

    part: has every read of a variable before its write, as after ``order_writes``. feeds: fed tensor -> output of its
    placeholder in ``part``. settled: layouts of variables that another plan of the same program has decided; the others
    are decided here. A pure function of its arguments and of the registered kernels.
    """
    if DeviceName.parse(device).type in LAUNCHING:
        part = small_updates_last(part)
    arranged = arrange(device, part, fetches, feeds, registry, settled)
    placed = assign_memory(arranged)
    variables = {name: arranged.slots[slot] for name, slot in arranged.residents.items()}
    used = {slot for each in placed.instructions for slot in each.inputs} | set(arranged.fetches.values())
    read = {arranged.owner[slot] for slot in used}
    return DevicePlan(
        device,
        placed.instructions,
        arranged.feeds,
        arranged.fetches,
        arranged.slots,
        placed.places,
        variables,
        frozenset(name for name, slot in arranged.residents.items() if slot in read),
        placed.arena_bytes,
    )


def small_updates_last(part: Graph, small_bytes: int = SMALL_BYTES) -> Graph:
    """Return the graph of one device with the updates of small variables at the end of the step.

    A launch takes a GPU microseconds however little it does, and a network has hundreds of small variables. Next to
    each other, updates of one kind become a single launch. The price is the memory of small gradients until then. The
    order of the updates, and of the other nodes, stays, so that reads of a variable still precede its write.
    """
    needed: dict[str, list[str]] = defaultdict(list)
    for node in part:
        for name in needed_by(node):
            needed[name].append(node.name)
    late: set[str] = set()
    for node in reversed(list(part)):
        only_for_late = late.issuperset(needed[node.name]) and (node.op == "assign" or needed[node.name])
        if only_for_late and _is_small_update(part, node, small_bytes):
            late.add(node.name)
    result = Graph()
    for is_late in (False, True):
        for node in part:
            if (node.name in late) is is_late:
                result.insert(node)
    return result


def _is_small_update(part: Graph, node: Node, small_bytes: int) -> bool:
    if node.op == "assign":
        return part.spec(node.inputs[1]).nbytes <= small_bytes
    return node.op in UPDATES and all(spec.nbytes <= small_bytes for spec in node.outputs)
