"""What one device does in one step, decided before the first: plain data that can be printed, compared and tested.

Values live in numbered slots. A slot is released after its last reader, so that memory in use follows lifetimes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.engine.graph import Graph, Node
from runner.engine.op import ShapeError
from runner.engine.tensor import Tensor, TensorSpec


@dataclass(frozen=True)
class Instruction:
    """Run the node ``node``: read ``inputs``, fill ``outputs``, then empty the slots in ``release``.

    op is an op name; ``variable``, ``assign``, ``send`` and ``recv`` are the executor's own, the others are kernels.
    An assign names its variable in its attributes and reads only the new value.
    """

    node: str
    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    release: tuple[int, ...]


@dataclass(frozen=True)
class Feed:
    """Put a fed value of this spec into ``slot`` before the first instruction."""

    tensor: Tensor
    slot: int
    spec: TensorSpec


@dataclass(frozen=True)
class DevicePlan:
    """Everything one device does in a step.

    specs: spec of each slot. variables: variable node name -> spec. peak_bytes: largest sum of slot sizes alive at
    once, feeds included, variables not.
    """

    device: str
    instructions: tuple[Instruction, ...]
    feeds: tuple[Feed, ...]
    fetches: Mapping[Tensor, int]
    specs: tuple[TensorSpec, ...]
    variables: Mapping[str, TensorSpec] = field(default_factory=dict)
    peak_bytes: int = 0

    @property
    def sent_bytes(self) -> int:
        """Bytes of tensors this device sends in a step."""
        return sum(self.specs[i.inputs[0]].nbytes for i in self.instructions if i.op == "send")


def plan_device(device: str, part: Graph, fetches: Sequence[Tensor], feeds: Mapping[Tensor, Tensor]) -> DevicePlan:
    """Turn the scheduled graph of one device into its plan, in the order the graph has.

    feeds: fed tensor -> output of the placeholder that carries it in ``part``.
    """
    slots: dict[Tensor, int] = {}
    for node in part:
        for tensor in node.tensors:
            slots[tensor] = len(slots)
    specs = tuple(part.spec(tensor) for tensor in slots)
    carried = {placeholder: fed for fed, placeholder in feeds.items()}
    kept = {slots[tensor] for tensor in fetches}
    unread = _only_assigned(part, fetches)
    body = [node for node in part if node.op != "placeholder" and node.name not in unread]
    last = _last_uses(body, slots)
    instructions = tuple(
        Instruction(
            node.name,
            node.op,
            {"variable": node.inputs[0].node} if node.op == "assign" else node.attributes,
            tuple(slots[tensor] for tensor in _read(node)),
            tuple(slots[tensor] for tensor in node.tensors),
            tuple(slot for slot in last[position] if slot not in kept),
        )
        for position, node in enumerate(body)
    )
    plan_feeds = tuple(
        Feed(carried[node[0]], slots[node[0]], node.outputs[0]) for node in part if node.op == "placeholder"
    )
    variables = {node.name: node.outputs[0] for node in part if node.op == "variable"}
    _check_assignments(part)
    return DevicePlan(
        device,
        instructions,
        plan_feeds,
        {tensor: slots[tensor] for tensor in fetches},
        specs,
        variables,
        _peak_bytes(instructions, plan_feeds, specs),
    )


def _read(node: Node) -> tuple[Tensor, ...]:
    """Tensors whose values a node needs: an assign replaces its variable without looking at it."""
    return node.inputs[1:] if node.op == "assign" else node.inputs


def _only_assigned(part: Graph, fetches: Sequence[Tensor]) -> set[str]:
    """Variables that nobody reads in this step; they need not have a value yet."""
    read = {tensor.node for node in part for tensor in _read(node)} | {tensor.node for tensor in fetches}
    return {node.name for node in part if node.op == "variable" and node.name not in read}


def _last_uses(body: Sequence[Node], slots: Mapping[Tensor, int]) -> list[list[int]]:
    """For each position the slots that nobody reads later; an output nobody reads dies where it is born."""
    dies_at: dict[int, int] = {}
    for position, node in enumerate(body):
        for tensor in (*node.tensors, *_read(node)):
            dies_at[slots[tensor]] = position
    deaths: list[list[int]] = [[] for _ in body]
    for slot, position in sorted(dies_at.items()):
        deaths[position].append(slot)
    return deaths


def _check_assignments(part: Graph) -> None:
    assigned: dict[str, str] = {}
    for node in part:
        if node.op == "assign":
            variable = node.inputs[0].node
            if variable in assigned:
                raise ShapeError(
                    f"variable {variable!r} is assigned by {assigned[variable]!r} and by {node.name!r} in one step"
                )
            assigned[variable] = node.name


def _peak_bytes(instructions: Sequence[Instruction], feeds: Sequence[Feed], specs: Sequence[TensorSpec]) -> int:
    # A variable's value is the store's memory, not the step's.
    resident = {slot for each in instructions if each.op == "variable" for slot in each.outputs}
    nbytes = [0 if slot in resident else spec.nbytes for slot, spec in enumerate(specs)]
    alive = peak = sum(feed.spec.nbytes for feed in feeds)
    for instruction in instructions:
        alive += sum(nbytes[slot] for slot in instruction.outputs)
        peak = max(peak, alive)
        alive -= sum(nbytes[slot] for slot in instruction.release)
    return peak
