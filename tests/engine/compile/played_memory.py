"""A simulation of a plan's memory, which checks that each instruction finds its inputs at their places."""

from collections.abc import Mapping, Sequence

import numpy as np

from runner.engine.compile.layouts import Arranged, arrange
from runner.engine.compile.memory import Placed, assign_memory
from runner.engine.compile.plan import Instruction, Place, Wire
from runner.engine.graph import Graph, Tensor
from runner.kernels.contract import Layout
from runner.kernels.memory import ALIGNMENT
from runner.kernels.registry import Registry

NOTHING = -1


def play(
    part: Graph,
    fetches: Sequence[Tensor],
    feeds: Mapping[Tensor, Tensor],
    registry: Registry,
    settled: Mapping[str, Layout],
    device: str = "/job:worker/task:0/device:cpu:0",
) -> tuple[Arranged, Placed]:
    """Arrange the graph of a device, assign memory and simulate the plan; return the arranged graph and its memory."""
    arranged = arrange(device, part, fetches, feeds, registry, settled)
    placed = assign_memory(arranged)
    expect_values_where_they_are_read(arranged, placed)
    return arranged, placed


def expect_values_where_they_are_read(arranged: Arranged, placed: Placed) -> None:
    """Expect that every instruction finds its inputs, and that fetched, assigned and sent values exist at the end.

    For each cache line, variable and wire, the simulation stores the slot that owns the value there, or NOTHING.
    """
    memory = _Memory(arranged, placed)
    for instruction in placed.instructions:
        memory.run(instruction)
    for tensor, slot in arranged.fetches.items():
        memory.expect(slot, f"fetch {tensor}")
    final = dict(arranged.residents)
    final.update({i.attributes["variable"]: i.inputs[0] for i in arranged.instructions if i.op == "assign"})
    for name, slot in final.items():
        assert memory.variables[name] == arranged.owner[slot], f"variable {name} holds another value at the end"
    for instruction in placed.instructions:
        if instruction.op in ("send", "recv"):
            (slot,) = (*instruction.inputs, *instruction.outputs)
            assert placed.places[slot].wire is not None
            memory.expect(slot, f"another device, from {instruction.node},")


class _Memory:
    def __init__(self, arranged: Arranged, placed: Placed) -> None:
        self.arranged = arranged
        self.placed = placed
        self.variables = dict(arranged.residents)
        self.wires: dict[Wire, int] = {}
        assert placed.arena_bytes % ALIGNMENT == 0
        self.lines = np.full(placed.arena_bytes // ALIGNMENT, NOTHING)
        for feed in arranged.feeds:
            self.fill(feed.slot)

    def run(self, instruction: Instruction) -> None:
        """Read the inputs, overwrite the scratch memory and write the outputs."""
        for slot in instruction.inputs:
            self.expect(slot, instruction.node)
        if instruction.op == "assign":
            self.variables[instruction.attributes["variable"]] = self.arranged.owner[instruction.inputs[0]]
            return
        scratch = self.span(Place(instruction.scratch), instruction.arrangement.scratch_bytes)
        self.lines[scratch] = NOTHING
        for slot in instruction.inputs:
            self.expect(slot, f"{instruction.node} with its scratch memory in use")
        for slot in instruction.outputs:
            self.fill(slot)
        self.expect_sharing_is_allowed(instruction)
        self.lines[scratch] = NOTHING
        for slot in instruction.outputs:
            self.expect(slot, f"{instruction.node}, which has just written it,")

    def expect_sharing_is_allowed(self, instruction: Instruction) -> None:
        """Expect that outputs overlap only inputs that the kernel may overwrite, which have an equal place and size."""
        places = self.placed.places
        for i, source in enumerate(instruction.inputs):
            for o, result in enumerate(instruction.outputs):
                if self.meet(source, result):
                    allowed = (i, o) in instruction.arrangement.in_place
                    assert allowed, f"{instruction.node}: output {o} overwrites input {i}"
                    assert places[source] == places[result]
                    assert self.nbytes(source) == self.nbytes(result)

    def meet(self, a: int, b: int) -> bool:
        """Return whether the places of two slots have a byte in common."""
        mine, other = self.placed.places[a], self.placed.places[b]
        if (mine.variable, mine.wire) != (None, None) or (other.variable, other.wire) != (None, None):
            return mine == other
        first, second = self.span(mine, self.nbytes(a)), self.span(other, self.nbytes(b))
        return max(first.start, second.start) < min(first.stop, second.stop)

    def nbytes(self, slot: int) -> int:
        return self.arranged.slots[slot].layout.nbytes

    def fill(self, slot: int) -> None:
        """Write the value of a slot to its place."""
        place = self.placed.places[slot]
        if place.variable is not None:
            self.variables[place.variable] = self.arranged.owner[slot]
        elif place.wire is not None:
            self.wires[place.wire] = self.arranged.owner[slot]
        else:
            self.lines[self.span(place, self.nbytes(slot))] = self.arranged.owner[slot]

    def expect(self, slot: int, reader: str) -> None:
        """Expect the complete value of a slot at its place."""
        place, owner = self.placed.places[slot], self.arranged.owner[slot]
        if place.variable is not None:
            assert self.variables[place.variable] == owner, f"{reader} finds another value in {place.variable}"
        elif place.wire is not None:
            assert self.wires.get(place.wire) == owner, f"{reader} finds another value on {place.wire}"
        else:
            found = self.lines[self.span(place, self.nbytes(slot))]
            assert (found == owner).all(), f"{reader} finds {set(found.tolist())} where slot {owner} should be"

    def span(self, place: Place, nbytes: int) -> slice:
        """Return the cache lines of ``nbytes`` bytes at a place, which must be inside the arena."""
        assert place.offset % ALIGNMENT == 0
        assert place.offset + nbytes <= self.placed.arena_bytes
        first = place.offset // ALIGNMENT
        return slice(first, first + -(-nbytes // ALIGNMENT))
