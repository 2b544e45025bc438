"""Places in memory, for any instructions over slots of any size, also such as no graph leads to."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.compile.layouts import Arranged
from runner.engine.compile.memory import assign_memory
from runner.engine.compile.plan import Feed, Instruction, Slot
from runner.engine.graph.tensor import Tensor, TensorSpec
from runner.kernels.contract import Arrangement, Layout
from tests.engine.compile.played_memory import expect_values_where_they_are_read

SIZES = (0, 1, 64, 65, 500)
VARIABLES = ("a", "b", "c")


class _Sketch:
    """A step under construction. open: variables that were not assigned yet and may be read."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.slots: list[Slot] = []
        self.owner: list[int] = []
        self.instructions: list[Instruction] = []
        self.feeds = [self.value(draw.choice(SIZES)) for _ in range(draw.randrange(3))]
        self.residents = {name: self.value(draw.choice(SIZES)) for name in VARIABLES}
        self.open = set(VARIABLES)

    def value(self, nbytes: int, owner: int | None = None) -> int:
        """A new slot."""
        self.slots.append(Slot(TensorSpec((nbytes,), "uint8"), Layout("", nbytes)))
        self.owner.append(len(self.owner) if owner is None else self.owner[owner])
        return len(self.slots) - 1

    def readable(self, *, variables: bool = True) -> list[int]:
        """Slots that still have the value with which they were filled."""
        closed = {slot for name, slot in self.residents.items() if name not in self.open or not variables}
        return [slot for slot, owner in enumerate(self.owner) if owner not in closed]

    def some(self, most: int) -> list[int]:
        """Slots to read, preferably new ones."""
        slots = self.readable()
        return self.draw.choices(slots + slots[-2:] * 3, k=self.draw.randint(0, most)) if slots else []

    def call(self) -> None:
        """Add a random instruction, which may compute in place."""
        ins = self.some(3)
        sizes = [*SIZES, *[self.nbytes(slot) for slot in ins] * 3]
        outs = [self.value(self.draw.choice(sizes)) for _ in range(self.draw.randrange(3))]
        pairs = [
            (i, o)
            for i, source in enumerate(ins)
            for o, result in enumerate(outs)
            if self.nbytes(source) == self.nbytes(result) and self.draw.random() < 0.8
        ]
        scratch = self.draw.choice([0, 0, 1, 200])
        self.append("call", ins, outs, Arrangement(self.layouts(ins), self.layouts(outs), scratch, tuple(pairs)))

    def alias(self) -> None:
        for slot in self.some(1):
            self.value(self.nbytes(slot), slot)

    def assign(self) -> None:
        """Assign a value to a variable; the value of another variable is copied first."""
        for name in self.draw.sample(sorted(self.open), min(1, len(self.open))):
            slots = self.readable(variables=False)
            fitting = [slot for slot in slots if self.nbytes(slot) == self.nbytes(self.residents[name])]
            if fitting:
                value = self.draw.choice(fitting)
                self.open.remove(name)
                self.append("assign", [value], [], Arrangement(self.layouts([value]), ()), name)

    def append(self, op: str, ins: list[int], outs: list[int], arrangement: Arrangement, variable: str = "") -> None:
        name = f"{op} {len(self.instructions)}"
        attributes = {"variable": variable}
        self.instructions.append(Instruction(name, op, attributes, "", tuple(ins), tuple(outs), arrangement))

    def layouts(self, slots: list[int]) -> tuple[Layout, ...]:
        return tuple(self.slots[slot].layout for slot in slots)

    def nbytes(self, slot: int) -> int:
        return self.slots[slot].layout.nbytes


def step(seed: int, length: int) -> Arranged:
    """The instructions of a device in a step, before memory is assigned."""
    sketch = _Sketch(random.Random(seed))
    for _ in range(length):
        sketch.draw.choice([sketch.call, sketch.call, sketch.call, sketch.alias, sketch.assign])()
    return Arranged(
        tuple(sketch.instructions),
        tuple(Feed(Tensor(f"feed_{slot}"), slot, sketch.slots[slot].spec) for slot in sketch.feeds),
        {Tensor(f"fetch_{slot}"): slot for slot in sketch.some(3)},
        tuple(sketch.slots),
        tuple(sketch.owner),
        sketch.residents,
    )


STEPS = st.builds(step, st.integers(0, 2**32), st.integers(1, 20))


@settings(max_examples=1000)
@given(STEPS)
def test_every_value_is_where_it_is_read(arranged: Arranged) -> None:
    expect_values_where_they_are_read(arranged, assign_memory(arranged))


@given(STEPS)
def test_all_instructions_but_assigns_remain(arranged: Arranged) -> None:
    placed = assign_memory(arranged)
    kept = {each.node: each.arrangement for each in placed.instructions}
    assert [each.node for each in arranged.instructions if each.node in kept] == list(kept)
    for each in arranged.instructions:
        assert kept.get(each.node, each.arrangement) == each.arrangement
        assert each.node in kept or each.op == "assign"
    assert len(placed.places) == len(arranged.slots)


@given(STEPS)
def test_memory_is_a_function_of_the_instructions(arranged: Arranged) -> None:
    assert assign_memory(arranged) == assign_memory(arranged)
