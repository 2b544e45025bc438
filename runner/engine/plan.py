"""What one device does in one step, decided before the first: plain data that can be printed, compared and tested.

Values live in numbered slots. Every slot has a place: in the device's arena, where values whose lifetimes do not meet
share memory, in the memory of a variable, or on a wire: what is sent is computed where its readers look, and what is
received is read where it lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from runner.engine.tensor import Tensor, TensorSpec
from runner.kernels.contract import Arrangement, Layout


@dataclass(frozen=True)
class Slot:
    """A value: what it is, and how it lies in memory."""

    spec: TensorSpec
    layout: Layout


@dataclass(frozen=True)
class Wire:
    """Memory of a value that one device writes and others read, in the same step.

    key: the name of what is sent where ``source`` is None and this device writes it; else the key of the transfer
    from the device ``source``.
    """

    key: str
    source: str | None = None


@dataclass(frozen=True)
class Place:
    """Where a slot's bytes begin: ``offset`` bytes into the arena, or at the start of ``variable`` or of ``wire``."""

    offset: int
    variable: str | None = None
    wire: Wire | None = None


@dataclass(frozen=True)
class Instruction:
    """Run the node ``node``: read the slots ``inputs``, fill the slots ``outputs``.

    op is an op name; ``assign``, ``send`` and ``recv`` are the executor's own and have no library, the others are
    kernels of ``library``. scratch: offset into the arena of the bytes that the arrangement asks for.
    """

    node: str
    op: str
    attributes: Mapping[str, Any]
    library: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arrangement: Arrangement
    scratch: int = 0


@dataclass(frozen=True)
class Feed:
    """Put a fed value into ``slot`` before the first instruction."""

    tensor: Tensor
    slot: int
    spec: TensorSpec


@dataclass(frozen=True)
class DevicePlan:
    """Everything one device does in a step.

    places: of each slot. variables: name -> spec and layout of every variable the step touches. read: variables whose
    value the step needs. arena_bytes: memory of a step besides the variables: inputs, activations, gradients, scratch.
    """

    device: str
    instructions: tuple[Instruction, ...]
    feeds: tuple[Feed, ...]
    fetches: Mapping[Tensor, int]
    slots: tuple[Slot, ...]
    places: tuple[Place, ...]
    variables: Mapping[str, Slot]
    read: frozenset[str]
    arena_bytes: int

    @property
    def written(self) -> frozenset[str]:
        """Variables that a step gives a value: by assigns, and by what computes right in their memory."""
        assigned = {i.attributes["variable"] for i in self.instructions if i.op == "assign"}
        places = [self.places[slot] for i in self.instructions for slot in i.outputs]
        return frozenset(assigned | {place.variable for place in places if place.variable is not None})

    @cached_property
    def sent_bytes(self) -> int:
        """Bytes of tensors this device sends in a step; sessions add them up in every step."""
        return sum(self.slots[i.inputs[0]].spec.nbytes for i in self.instructions if i.op == "send")

    @property
    def conversions(self) -> int:
        """How often a step changes a tensor's layout."""
        return sum(i.op == "convert" and i.arrangement.inputs != i.arrangement.outputs for i in self.instructions)

    @property
    def libraries(self) -> frozenset[str]:
        """Names of the libraries whose kernels the plan uses."""
        return frozenset(i.library for i in self.instructions if i.library)

    @property
    def layouts(self) -> dict[str, Layout]:
        """Layout of each variable."""
        return {name: slot.layout for name, slot in self.variables.items()}
