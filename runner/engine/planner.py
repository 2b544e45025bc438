"""From a device's scheduled graph to its plan: layouts first, then memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.engine.device import DeviceName
from runner.engine.graph import Graph
from runner.engine.passes.late_updates import small_updates_last
from runner.engine.passes.layouts import arrange
from runner.engine.passes.memory import assign_memory
from runner.engine.plan import DevicePlan
from runner.engine.tensor import Tensor
from runner.kernels.contract import Layout
from runner.kernels.registry import Registry

LAUNCHING = frozenset({"gpu"})
"""Device types on which beginning a kernel takes longer than a small kernel."""


def plan_device(
    device: str,
    part: Graph,
    fetches: Sequence[Tensor],
    feeds: Mapping[Tensor, Tensor],
    registry: Registry,
    settled: Mapping[str, Layout],
) -> DevicePlan:
    """Turn the scheduled graph of one device into its plan, in the order the graph has.

    part: every read of a variable stands before its write, as ``order_writes`` leaves it. feeds: fed tensor -> output
    of the placeholder that carries it in ``part``. settled: layouts of variables as another plan of the same program
    has decided them; variables that are not in it are decided here. A pure function of its arguments and of the
    kernels registered.
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
