"""The plan of one device for a step, made before the first step: plain data that can be printed and compared.

Values are in numbered slots. Every slot has a place: in the arena of the device, where values with disjoint lifetimes
share memory; in the memory of a variable; or in a wire, which is memory that the sender of a value shares with the
receivers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from runner.engine.graph import Tensor, TensorSpec
from runner.kernels.contract import Arrangement, Layout


@dataclass(frozen=True)
class Slot:
    """A value of a step: its shape and dtype, and its layout in memory."""

    spec: TensorSpec
    layout: Layout


@dataclass(frozen=True)
class Wire:
    """Memory for a value that one device writes and other devices read in the same step.

    source: the device that sends the value, or None if this device sends it. key: the key of the transfer; if this
    device sends the value, the name of the sent tensor.
    """

    key: str
    source: str | None = None


@dataclass(frozen=True)
class Place:
    """The start of a slot's memory: ``offset`` bytes into the arena, or the start of ``variable`` or of ``wire``."""

    offset: int
    variable: str | None = None
    wire: Wire | None = None


@dataclass(frozen=True)
class Instruction:
    """The execution of the node ``node``, which reads the slots ``inputs`` and fills the slots ``outputs``.

    library: library of the kernel; "" for ``assign``, ``send`` and ``recv``, which the executor runs itself. scratch:
    arena offset in bytes of the scratch memory that the arrangement requests.
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
    """The copy of a fed value into ``slot`` before the first instruction."""

    tensor: Tensor
    slot: int
    spec: TensorSpec


@dataclass(frozen=True)
class DevicePlan:
    """The work of one device in a step.

    places: place of each slot. variables: name -> spec and layout of every variable that the step reads or writes.
    read: names of the variables whose value the step reads. arena_bytes: size of the arena, which holds inputs,
    activations, gradients and scratch memory.
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
        """Names of the variables that a step writes: by assigns, or by kernels that compute in variable memory."""
        assigned = {i.attributes["variable"] for i in self.instructions if i.op == "assign"}
        places = [self.places[slot] for i in self.instructions for slot in i.outputs]
        return frozenset(assigned | {place.variable for place in places if place.variable is not None})

    @cached_property
    def sent_bytes(self) -> int:
        """Bytes of tensors that this device sends in a step."""
        return sum(self.slots[i.inputs[0]].spec.nbytes for i in self.instructions if i.op == "send")

    @property
    def received_bytes(self) -> dict[str, int]:
        """Bytes of tensors that this device receives in a step, by sending device."""
        received: dict[str, int] = {}
        for instruction in self.instructions:
            if instruction.op == "recv":
                source, nbytes = instruction.attributes["source"], self.slots[instruction.outputs[0]].spec.nbytes
                received[source] = received.get(source, 0) + nbytes
        return received

    @property
    def libraries(self) -> frozenset[str]:
        """Names of the libraries whose kernels the plan uses."""
        return frozenset(i.library for i in self.instructions if i.library)

    @property
    def layouts(self) -> dict[str, Layout]:
        """Layout of each variable."""
        return {name: slot.layout for name, slot in self.variables.items()}
