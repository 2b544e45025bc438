"""Memory planning by lifetime: the values that share memory, and the offset of each value in the device's arena.

Sent and received values are stored in wires, buffers that are not reused before the end of the step. The other values
are placed in three steps. First, a value that is assigned to a variable is computed in the variable's memory if the old
value is no longer needed. Second, an output takes the memory of an input that no later instruction uses if the kernel
allows it. Third, all other values are allocated in the arena before their first use, in the smallest sufficient gap,
and are freed after their last use.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.engine.compile.layouts import Arranged
from runner.engine.compile.passes.transfers import sent_tensor
from runner.engine.compile.plan import Instruction, Place, Wire
from runner.kernels.memory import ALIGNMENT


@dataclass(frozen=True)
class Placed:
    """Instructions with scratch memory and without in-place assigns; the place of each slot; the arena's size."""

    instructions: tuple[Instruction, ...]
    places: tuple[Place, ...]
    arena_bytes: int


def assign_memory(arranged: Arranged) -> Placed:
    """Assign a place to every slot."""
    values = _Values(arranged)
    instructions = values.without_assigns_in_place(arranged.instructions)
    values.reuse_inputs(instructions)
    return _lay_out(arranged, values, instructions)


class _Values:
    """The memory of slots: the root of each slot (see :meth:`of`), and the roots in variables and in wires."""

    def __init__(self, arranged: Arranged) -> None:
        self.arranged = arranged
        self.root = list(arranged.owner)
        self.variable = {slot: name for name, slot in arranged.residents.items()}
        self.fetched = {arranged.owner[slot] for slot in arranged.fetches.values()}
        self.nbytes = [slot.layout.nbytes for slot in arranged.slots]
        self.wire = {self.of(slot): wire for slot, wire in _wires(arranged.instructions)}

    def of(self, slot: int) -> int:
        """Return the root of a slot: the slot that provides the memory of ``slot``."""
        while self.root[slot] != slot:
            slot = self.root[slot]
        return slot

    def without_assigns_in_place(self, instructions: Sequence[Instruction]) -> list[Instruction]:
        """Place assigned values in the memory of their variables, if possible; return the instructions that remain."""
        written: dict[int, int] = {}
        last_read: dict[int, int] = {}
        for position, instruction in enumerate(instructions):
            written.update((self.of(slot), position) for slot in instruction.outputs)
            last_read.update((self.of(slot), position) for slot in instruction.inputs)
        kept = []
        for instruction in instructions:
            if instruction.op == "assign" and self._computed_in_place(instruction, instructions, written, last_read):
                resident = self.arranged.residents[instruction.attributes["variable"]]
                self.root[self.of(instruction.inputs[0])] = resident
            else:
                kept.append(instruction)
        return kept

    def _computed_in_place(
        self,
        assign: Instruction,
        instructions: Sequence[Instruction],
        written: Mapping[int, int],
        last_read: Mapping[int, int],
    ) -> bool:
        value = self.of(assign.inputs[0])
        resident = self.arranged.residents[assign.attributes["variable"]]
        if value not in written or value in self.wire:
            return False
        producer = instructions[written[value]]
        old_value_needed = last_read.get(resident, -1)
        if old_value_needed > written[value]:
            return False
        if old_value_needed == written[value]:
            output = next(i for i, slot in enumerate(producer.outputs) if self.of(slot) == value)
            return self._may_share(producer, resident, output)
        return True

    def reuse_inputs(self, instructions: Sequence[Instruction]) -> None:
        """If the kernel allows it, place an output in the memory of an input that no later instruction uses."""
        last_use = _last_uses(self, instructions)
        for position, instruction in enumerate(instructions):
            taken: set[int] = set()
            for i, o in instruction.arrangement.in_place:
                source, result = self.of(instruction.inputs[i]), self.of(instruction.outputs[o])
                if (
                    source != result
                    and not {source, result} & taken
                    and last_use.get(source) == position
                    and not {source, result} & self.variable.keys()
                    and source not in self.fetched
                    and source not in self.wire
                    and self.nbytes[source] == self.nbytes[result]
                    and self._may_share(instruction, source, o)
                ):
                    self.root[result] = source
                    taken |= {source, result}
                    last_use[source] = last_use[result]
                    if result in self.fetched:
                        self.fetched.add(source)
                    if result in self.wire:
                        self.wire[source] = self.wire[result]

    def _may_share(self, instruction: Instruction, source: int, output: int) -> bool:
        """Return whether every input with the root ``source`` may share its memory with output number ``output``."""
        return all(
            (i, output) in instruction.arrangement.in_place
            for i, slot in enumerate(instruction.inputs)
            if self.of(slot) == source
        )


def _wires(instructions: Sequence[Instruction]) -> Iterator[tuple[int, Wire]]:
    """Yield the slot and the wire of every send and receive."""
    for instruction in instructions:
        if instruction.op == "recv":
            yield instruction.outputs[0], Wire(instruction.attributes["key"], instruction.attributes["source"])
        elif instruction.op == "send":
            yield instruction.inputs[0], Wire(sent_tensor(instruction.attributes["key"]))


def _last_uses(values: _Values, instructions: Sequence[Instruction]) -> dict[int, int]:
    """Return, for each root, the position of the last instruction that reads or writes it."""
    last: dict[int, int] = {}
    for position, instruction in enumerate(instructions):
        for slot in (*instruction.inputs, *instruction.outputs):
            last[values.of(slot)] = position
    return last


def _lay_out(arranged: Arranged, values: _Values, instructions: Sequence[Instruction]) -> Placed:
    arena = _Arena()
    offsets: dict[int, int] = {}
    elsewhere = values.variable.keys() | values.wire.keys()
    kept = elsewhere | {values.of(slot) for slot in arranged.fetches.values()}
    freed_at: dict[int, list[int]] = {}
    for root, position in _last_uses(values, instructions).items():
        if root not in kept:
            freed_at.setdefault(position, []).append(root)
    for feed in arranged.feeds:
        if values.of(feed.slot) not in elsewhere:
            offsets[values.of(feed.slot)] = arena.allocate(values.nbytes[feed.slot])
    placed = []
    for position, instruction in enumerate(instructions):
        for root in dict.fromkeys(map(values.of, instruction.outputs)):
            if root not in offsets and root not in elsewhere:
                offsets[root] = arena.allocate(values.nbytes[root])
        scratch = instruction.arrangement.scratch_bytes
        start = arena.allocate(scratch)
        placed.append(replace(instruction, scratch=start) if scratch else instruction)
        arena.free(start, scratch)
        for root in freed_at.get(position, ()):
            arena.free(offsets[root], values.nbytes[root])
    roots = map(values.of, range(len(arranged.slots)))
    places = (Place(offsets.get(root, 0), values.variable.get(root), values.wire.get(root)) for root in roots)
    return Placed(tuple(placed), tuple(places), arena.end)


class _Arena:
    """A growing block of memory and the gaps in it. All sizes are rounded up to whole cache lines."""

    def __init__(self) -> None:
        self.end = 0
        self._gaps: dict[int, int] = {}  # start -> size

    def allocate(self, nbytes: int) -> int:
        """Allocate bytes in the smallest sufficient gap (of equal gaps, the first) or at the end; return the offset."""
        size = _whole_lines(nbytes)
        if size == 0:
            return 0
        fitting = [(gap, start) for start, gap in self._gaps.items() if gap >= size]
        if fitting:
            gap, start = min(fitting)
            self._gaps.pop(start)
        else:
            # A gap at the end becomes the first part of the allocation.
            gap, start = size, self._pop_gap_before(self.end)
            self.end = start + size
        if gap > size:
            self._gaps[start + size] = gap - size
        return start

    def free(self, start: int, nbytes: int) -> None:
        """Free bytes and join the new gap with adjacent gaps."""
        end = start + _whole_lines(nbytes)
        if start < end:
            end += self._gaps.pop(end, 0)
            start = self._pop_gap_before(start)
            self._gaps[start] = end - start

    def _pop_gap_before(self, end: int) -> int:
        """Remove the gap that ends at ``end``; return its start, or ``end`` if there is none."""
        found = next((start for start, gap in self._gaps.items() if start + gap == end), end)
        self._gaps.pop(found, None)
        return found


def _whole_lines(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
