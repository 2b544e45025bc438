"""Planning of a device's scheduled graph: first layouts, then memory."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from runner.engine.compile.layouts import arrange
from runner.engine.compile.memory import assign_memory
from runner.engine.compile.passes.order_writes import UPDATES
from runner.engine.compile.plan import DevicePlan
from runner.engine.graph import GPU, DeviceName, Graph, Node, Tensor
from runner.kernels.contract import Layout
from runner.kernels.registry import Registry

SMALL_BYTES = 1 << 20
"""Largest size in bytes of a small variable. The update of a larger variable occupies the whole GPU."""


@dataclass(frozen=True)
class Part:
    """The part of a signature on one device.

    graph: the scheduled graph, in which all reads of a variable precede its write (see ``order_writes``). feeds: fed
    tensor -> output of its placeholder.
    """

    graph: Graph
    fetches: tuple[Tensor, ...]
    feeds: Mapping[Tensor, Tensor]

    def plan(self, device: str, registry: Registry, decided: Mapping[str, Layout]) -> DevicePlan:
        """Return the plan of the device, which executes the nodes in the order of the graph.

        decided: variable name -> layout in an earlier plan. The result is a pure function of the part, of the arguments
        and of the registered kernels, so all processes compute the same plan.
        """
        graph = small_updates_last(self.graph) if DeviceName.parse(device).type == GPU else self.graph
        arranged = arrange(device, graph, self.fetches, self.feeds, registry, decided)
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

    On a GPU, the launch of even a small kernel takes microseconds, and a network has hundreds of small variables.
    Adjacent updates of one kind need only a single launch. However, small gradients stay in memory until the end of the
    step. Updates keep their relative order, as do other nodes. So reads of a variable still precede its write.
    """
    needed: dict[str, list[str]] = defaultdict(list)
    for node in part:
        for name in node.needed:
            needed[name].append(node.name)
    late: set[str] = set()
    for node in reversed(list(part)):
        only_for_late = late.issuperset(needed[node.name]) and (node.op == "assign" or needed[node.name])
        if only_for_late and _is_small_update(part, node, small_bytes):
            late.add(node.name)
    return Graph.of(sorted(part, key=lambda node: node.name in late))


def _is_small_update(part: Graph, node: Node, small_bytes: int) -> bool:
    if node.op == "assign":
        return part.spec(node.inputs[1]).nbytes <= small_bytes
    return node.op in UPDATES and all(spec.nbytes <= small_bytes for spec in node.outputs)
