"""Buffers by lifetime: which values share memory, and where each begins in the device's arena.

What is sent lies where its readers look, and what is received lies there already; nobody writes there again before the
step ends. For the rest, three steps. A value that is assigned to a variable is computed in the variable's own memory,
where nobody needs the old value any more. An output takes the place of an input that dies with it, where the kernel
allows that. What is left is put into the arena as it comes to life, in the smallest gap that holds it, and taken out
after its last use.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.engine.passes.layouts import Arranged
from runner.engine.passes.transfers import sent_tensor
from runner.engine.plan import Instruction, Place, Wire
from runner.kernels.memory import ALIGNMENT


@dataclass(frozen=True)
class Placed:
    """The instructions that are left, with scratch memory placed, the place of each slot, and the arena's size."""

    instructions: tuple[Instruction, ...]
    places: tuple[Place, ...]
    arena_bytes: int


def assign_memory(arranged: Arranged) -> Placed:
    """Give every slot a place."""
    values = _Values(arranged)
    instructions = values.without_needless_assigns(arranged.instructions)
    values.take_over_inputs(instructions)
    return _lay_out(arranged, values, instructions)


class _Values:
    """The memory that slots stand for: a root slot per value, and whose variable it is, or on which wire."""

    def __init__(self, arranged: Arranged) -> None:
        self.arranged = arranged
        self.root = list(arranged.owner)
        self.variable = {slot: name for name, slot in arranged.residents.items()}
        self.fetched = {arranged.owner[slot] for slot in arranged.fetches.values()}
        self.nbytes = [slot.layout.nbytes for slot in arranged.slots]
        self.wire = {self.of(slot): wire for slot, wire in _wires(arranged.instructions)}

    def of(self, slot: int) -> int:
        """The root of a slot, through everything that took over memory of something else."""
        while self.root[slot] != slot:
            slot = self.root[slot]
        return slot

    def without_needless_assigns(self, instructions: Sequence[Instruction]) -> list[Instruction]:
        """Let values be computed where they are assigned; return the instructions without those assigns."""
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

    def take_over_inputs(self, instructions: Sequence[Instruction]) -> None:
        """Let outputs be computed where inputs die, as kernels allow."""
        dies = _last_uses(self, instructions)
        for position, instruction in enumerate(instructions):
            taken: set[int] = set()
            for i, o in instruction.arrangement.in_place:
                source, result = self.of(instruction.inputs[i]), self.of(instruction.outputs[o])
                if (
                    source != result
                    and not {source, result} & taken
                    and dies.get(source) == position
                    and not {source, result} & self.variable.keys()
                    and source not in self.fetched
                    and source not in self.wire
                    and self.nbytes[source] == self.nbytes[result]
                    and self._may_share(instruction, source, o)
                ):
                    self.root[result] = source
                    taken |= {source, result}
                    dies[source] = dies[result]
                    if result in self.fetched:
                        self.fetched.add(source)
                    if result in self.wire:
                        self.wire[source] = self.wire[result]

    def _may_share(self, instruction: Instruction, source: int, output: int) -> bool:
        """Whether every input that lies in ``source`` may share the memory of an output."""
        return all(
            (i, output) in instruction.arrangement.in_place
            for i, slot in enumerate(instruction.inputs)
            if self.of(slot) == source
        )


def _wires(instructions: Sequence[Instruction]) -> Iterator[tuple[int, Wire]]:
    """Every slot that is sent or received, and the wire that it lies on."""
    for instruction in instructions:
        if instruction.op == "recv":
            yield instruction.outputs[0], Wire(instruction.attributes["key"], instruction.attributes["source"])
        elif instruction.op == "send":
            yield instruction.inputs[0], Wire(sent_tensor(instruction.attributes["key"]))


def _last_uses(values: _Values, instructions: Sequence[Instruction]) -> dict[int, int]:
    """Root -> position of the last instruction that reads or writes it."""
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
    dying: dict[int, list[int]] = {}
    for root, position in _last_uses(values, instructions).items():
        if root not in kept:
            dying.setdefault(position, []).append(root)
    for feed in arranged.feeds:
        if values.of(feed.slot) not in elsewhere:
            offsets[values.of(feed.slot)] = arena.take(values.nbytes[feed.slot])
    placed = []
    for position, instruction in enumerate(instructions):
        for root in dict.fromkeys(map(values.of, instruction.outputs)):
            if root not in offsets and root not in elsewhere:
                offsets[root] = arena.take(values.nbytes[root])
        scratch = instruction.arrangement.scratch_bytes
        start = arena.take(scratch)
        placed.append(replace(instruction, scratch=start) if scratch else instruction)
        arena.give_back(start, scratch)
        for root in dying.get(position, ()):
            arena.give_back(offsets[root], values.nbytes[root])
    places = tuple(_place(values, slot, offsets) for slot in range(len(arranged.slots)))
    return Placed(tuple(placed), places, arena.end)


def _place(values: _Values, slot: int, offsets: Mapping[int, int]) -> Place:
    root = values.of(slot)
    return Place(offsets.get(root, 0), values.variable.get(root), values.wire.get(root))


class _Arena:
    """Gaps of a growing piece of memory, in units of whole cache lines."""

    def __init__(self) -> None:
        self.end = 0
        self._by_start: dict[int, int] = {}
        self._by_end: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = []

    def take(self, nbytes: int) -> int:
        """Start of ``nbytes`` bytes: in the smallest gap that holds them, at the lowest address, or at the end."""
        size = _whole_lines(nbytes)
        if size == 0:
            return 0
        found = bisect_left(self._by_size, (size, -1))
        if found == len(self._by_size):
            return self._grow(size)
        gap, start = self._by_size[found]
        self._remove(start, gap)
        if gap > size:
            self._add(start + size, gap - size)
        return start

    def give_back(self, start: int, nbytes: int) -> None:
        """Make a gap, joined with those beside it."""
        size = _whole_lines(nbytes)
        if size == 0:
            return
        if start in self._by_end:
            before = self._by_end[start]
            self._remove(before, start - before)
            start, size = before, size + start - before
        if start + size in self._by_start:
            after = self._by_start[start + size]
            self._remove(start + size, after)
            size += after
        self._add(start, size)

    def _grow(self, size: int) -> int:
        # A gap at the very end is the beginning of what is needed.
        start = self._by_end.get(self.end, self.end)
        if start < self.end:
            self._remove(start, self.end - start)
        self.end = start + size
        return start

    def _add(self, start: int, size: int) -> None:
        self._by_start[start] = size
        self._by_end[start + size] = start
        insort(self._by_size, (size, start))

    def _remove(self, start: int, size: int) -> None:
        del self._by_start[start]
        del self._by_end[start + size]
        self._by_size.pop(bisect_left(self._by_size, (size, start)))


def _whole_lines(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
