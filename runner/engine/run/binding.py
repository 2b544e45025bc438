"""Binding of a plan: assign memory to every slot and a call to every instruction, once for all steps."""

from collections.abc import Callable, Mapping, Sequence

from runner.engine.compile.plan import DevicePlan, Instruction, Place, Slot, Wire
from runner.engine.graph.device import DeviceName
from runner.engine.run.storage import VariableStore
from runner.engine.run.wires import Receive, Wires
from runner.kernels.contract import Bound, Buffers, Operand
from runner.kernels.memory import Bytes
from runner.kernels.platform import Work
from runner.kernels.registry import Registry


class Binding:
    """A plan whose slots have memory. operands: one for each slot.

    data: the arena of the device. step: returns the number of the current step; called by sends and receives.
    """

    def __init__(
        self,
        plan: DevicePlan,
        registry: Registry,
        variables: VariableStore,
        wires: Wires,
        data: Bytes,
        step: Callable[[], int],
    ) -> None:
        self._plan = plan
        self._registry = registry
        self._variables = variables
        self._wires = wires
        self._data = data
        self._step = step
        self._device_type = DeviceName.parse(plan.device).type or ""
        self.operands = tuple(self._operand(slot, place) for slot, place in zip(plan.slots, plan.places, strict=True))

    def work(self, instruction: Instruction) -> Work:
        """Return the call of an instruction and the memory that it reads and writes."""
        scratch = self._data[instruction.scratch : instruction.scratch + instruction.arrangement.scratch_bytes]
        reads = [operand.data for operand in self._at(instruction.inputs)]
        writes = [operand.data for operand in self._at(instruction.outputs)]
        if instruction.op == "assign":
            writes.append(self._variable(instruction))
        return Work(self._bind_one(scratch, instruction), tuple(reads), (*writes, scratch))

    def receiver(self, instruction: Instruction) -> Receive:
        """Return the two parts of a receive."""
        key, source = instruction.attributes["key"], instruction.attributes["source"]
        return self._wires.receiver(key, source, self.operands[instruction.outputs[0]])

    def _operand(self, slot: Slot, place: Place) -> Operand:
        if place.variable is not None:
            memory = self._variables.memory(place.variable, self._plan.variables[place.variable])
            return Operand(slot.spec, slot.layout, memory)
        if place.wire is not None:
            return Operand(slot.spec, slot.layout, self._on_wire(place.wire, slot.layout.nbytes))
        return Operand(slot.spec, slot.layout, self._data[place.offset : place.offset + slot.layout.nbytes])

    def _on_wire(self, wire: Wire, nbytes: int) -> Bytes:
        if wire.source is None:
            return self._wires.outgoing(wire.key, nbytes)
        return self._wires.incoming(wire.key, wire.source, nbytes)

    def _bind_one(self, scratch: Bytes, instruction: Instruction) -> Bound:
        executed_here: Mapping[str, Callable[[Instruction], Bound]] = {
            "assign": self._bind_assign,
            "send": self._bind_send,
            "recv": self._bind_recv,
        }
        if instruction.op in executed_here:
            return executed_here[instruction.op](instruction)
        kernel = self._registry.find(instruction.op, self._device_type, instruction.library)
        buffers = Buffers(self._at(instruction.inputs), self._at(instruction.outputs), scratch)
        return kernel.bind(instruction.attributes, instruction.arrangement, buffers)

    def _at(self, slots: Sequence[int]) -> tuple[Operand, ...]:
        return tuple(self.operands[slot] for slot in slots)

    def _variable(self, assign: Instruction) -> Bytes:
        name = assign.attributes["variable"]
        return self._variables.memory(name, self._plan.variables[name])

    def _bind_assign(self, instruction: Instruction) -> Bound:
        (value,) = self._at(instruction.inputs)
        return self._variables.platform.copier(self._variable(instruction), value.data)

    def _bind_send(self, instruction: Instruction) -> Bound:
        key, destination = instruction.attributes["key"], instruction.attributes["destination"]
        send = self._wires.sender(key, destination, self.operands[instruction.inputs[0]])
        return lambda: send(self._step())

    def _bind_recv(self, instruction: Instruction) -> Bound:
        wait, take = self.receiver(instruction)
        return lambda: take(wait(self._step()))
