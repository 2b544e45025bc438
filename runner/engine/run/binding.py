"""Binding of a plan: assign memory to every slot and a call to every instruction, once for all steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.engine.compile.plan import DevicePlan, Instruction, Place, Slot
from runner.engine.graph import DeviceName
from runner.engine.run.storage import VariableStore
from runner.engine.run.wires import Receive, Wires
from runner.kernels.contract import Bound, Buffers, Operand
from runner.kernels.memory import Bytes
from runner.kernels.platform import Work
from runner.kernels.registry import Registry


@dataclass
class Binding:
    """A plan with memory for every slot. operands: one operand for each slot.

    data: the device's arena (see ``storage``). step: returns the number of the current step.
    """

    plan: DevicePlan
    registry: Registry
    variables: VariableStore
    wires: Wires
    data: Bytes
    step: Callable[[], int]

    def __post_init__(self) -> None:
        slots = zip(self.plan.slots, self.plan.places, strict=True)
        self.operands = tuple(self._operand(slot, place) for slot, place in slots)

    def work(self, instruction: Instruction) -> Work:
        """Return the call of an instruction and the memory that it reads and writes."""
        scratch = self.data[instruction.scratch : instruction.scratch + instruction.arrangement.scratch_bytes]
        reads = [operand.data for operand in self._at(instruction.inputs)]
        writes = [operand.data for operand in self._at(instruction.outputs)]
        if instruction.op == "assign":
            writes.append(self._variable(instruction))
        return Work(self._call(scratch, instruction), tuple(reads), (*writes, scratch))

    def receiver(self, instruction: Instruction) -> Receive:
        """Return the two functions of a receive instruction; see :class:`~runner.engine.run.wires.Receive`."""
        key, source = instruction.attributes["key"], instruction.attributes["source"]
        return self.wires.receiver(key, source, self.operands[instruction.outputs[0]])

    def _operand(self, slot: Slot, place: Place) -> Operand:
        if place.variable is not None:
            memory = self.variables.memory(place.variable, self.plan.variables[place.variable])
        elif place.wire is None:
            memory = self.data[place.offset : place.offset + slot.layout.nbytes]
        elif place.wire.source is None:
            memory = self.wires.outgoing(place.wire.key, slot.layout.nbytes)
        else:
            memory = self.wires.incoming(place.wire.key, place.wire.source, slot.layout.nbytes)
        return Operand(slot.spec, slot.layout, memory)

    def _call(self, scratch: Bytes, instruction: Instruction) -> Bound:
        attributes, inputs = instruction.attributes, self._at(instruction.inputs)
        match instruction.op:
            case "assign":
                return self.variables.platform.copier(self._variable(instruction), inputs[0].data)
            case "send":
                send = self.wires.sender(attributes["key"], attributes["destination"], inputs[0])
                return (lambda: send(self.step())) if callable(send) else send
            case "recv":
                receive = self.receiver(instruction)
                if receive.native is not None:
                    return receive.native
                return lambda: receive.take(receive.wait(self.step()))
        device_type = DeviceName.parse(self.plan.device).type or ""
        kernel = self.registry.find(instruction.op, device_type, instruction.library)
        buffers = Buffers(inputs, self._at(instruction.outputs), scratch)
        return kernel.bind(attributes, instruction.arrangement, buffers)

    def _at(self, slots: Sequence[int]) -> tuple[Operand, ...]:
        return tuple(self.operands[slot] for slot in slots)

    def _variable(self, assign: Instruction) -> Bytes:
        name = assign.attributes["variable"]
        return self.variables.memory(name, self.plan.variables[name])
