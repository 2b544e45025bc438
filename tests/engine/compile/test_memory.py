"""Places of values in memory: values that may share bytes, and values that must not.

The text of a plan is ``OP=PLACE ... | SIZE``: instructions with the places of their outputs, then the arena's size.
A place is an offset in the arena, a variable, or a ``Wire`` (``~KEY``). Offsets and sizes are in 64-byte cache lines.
"""

import random
from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.compile.layouts import Arranged
from runner.engine.compile.memory import assign_memory
from runner.engine.compile.passes.order_writes import order_writes
from runner.engine.compile.passes.transfers import sent_tensor, transfer_key
from runner.engine.compile.plan import Feed, Instruction, Place, Slot
from runner.engine.graph import Tensor, TensorSpec
from runner.kernels.contract import Arrangement, Kernel, Layout
from runner.kernels.memory import ALIGNMENT
from tests.engine.compile.passes.graph_text import Text
from tests.engine.compile.played_memory import expect_values_where_they_are_read, play
from tests.engine.run.fake_kernels import PLAIN, REVERSED, VIA_PLAIN, always, converting, fake_kernel, fake_registry
from tests.engine.running import CPU_0, CPU_1

CHAIN = "; ".join(f"n{k} = neg({f'n{k - 1}' if k else 'x'})" for k in range(9))
VIEWS = "y = neg(x); v = reshape(y, shape=(2, 4))"
NORM = "batch_norm_gradient(z, gamma, mean, variance, d)"
VECTORS = "; ".join(f"{name} = input(8)" for name in ("dy", "gamma", "mean", "variance"))
PARTS = "low, high = split(x, axis=0, sizes=({}, {}))"
FILL, SUM = "fill(value=1.0, shape=({},), dtype='float64')", "reduce_sum({}, axes=(0,))"
FILLED = "; ".join(f"{name} = {FILL.format(size)}" for name, size in {"a": 24, "b": 8, "c": 8, "d": 1}.items())
HALF = "slice({}, begin=(0,), size=(4,), steps=(1,))"
NOTHING = "slice({}, begin=(0,), size=(0,), steps=(1,))"
SENT = "send({}, key='{}->there', destination='{}')"
OTHER = "/job:worker/task:2/device:cpu:0"
RECEIVED = f"r = recv(key='k->here', source='{CPU_1}', shape=(8,), dtype='float64')"
BOTH, EVERY = ((0, 0), (1, 0)), tuple((i, o) for i in range(5) for o in range(3))


def greedy(op: str, in_place: Collection[tuple[int, int]] = ((0, 0),), scratch_bytes: int = 0) -> Kernel:
    """Return a kernel with plain layouts. in_place: the pairs (input, output) that may share memory."""
    return fake_kernel(op, always(PLAIN, PLAIN, in_place=in_place, scratch_bytes=scratch_bytes))


NEG, ADD = greedy("neg"), greedy("add")
STRANGE = fake_kernel("exp", always(REVERSED, REVERSED)), fake_kernel("convert", converting(VIA_PLAIN))

Case = tuple[str, str, str, tuple[Kernel, ...]]


def case(text: str, expected: str, fetch: str = "", *kernels: Kernel) -> Case:
    """Return a graph that reads x, its plan, the fetched names, and the kernels added to the reference kernels."""
    return text, expected, fetch, kernels


ARENA: dict[str, Case] = {
    "a value frees its memory at its last read": case(
        CHAIN, "neg=1 neg=0 neg=1 neg=0 neg=1 neg=0 neg=1 neg=0 neg=1 | 2", "n8"
    ),
    "a chain in place needs the memory of one value": case(
        CHAIN, "neg=0 neg=0 neg=0 neg=0 neg=0 neg=0 neg=0 neg=0 neg=0 | 1", "n8", NEG
    ),
    "a value that is still read keeps its memory": case(
        "a = neg(x); b = neg(a); y = add(b, x)", "neg=1 neg=1 add=2 | 3", "y", NEG
    ),
    "fetched values keep their memory to the end": case(
        "a = neg(x); b = neg(a); c = neg(b); i = identity(c); d = neg(c)", "neg=1 neg=1 neg=2 neg=3 | 4", "x b i d", NEG
    ),
    "a value that no node reads frees its memory immediately": case(
        "a = neg(x); b = neg(x); c = neg(x)", "neg=1 neg=1 neg=1 | 2"
    ),
    "an alias keeps memory in use": case(
        f"{VIEWS}; e = exp(x); w = reshape(e, shape=(2, 4)); l = neg(w); i = identity(v); s = add(l, i)",
        "neg=1 exp=2 neg=2 add=2 | 3",
        "s",
        ADD,
        NEG,
    ),
    "an output uses the memory of an input that it sees through an alias": case(
        f"{VIEWS}; e = exp(v)", "neg=1 exp=1 | 2", "e", greedy("exp")
    ),
    "the second of two inputs may be overwritten": case(
        "b = input(8); y = add(x, b)", "add=1 | 2", "y", greedy("add", [(1, 0)])
    ),
    "both inputs may be overwritten": case("b = input(8); y = add(x, b)", "add=0 | 2", "y", greedy("add", BOTH)),
    "no input may be overwritten": case("b = input(8); y = add(x, b)", "add=2 | 3", "y"),
    "a value is read twice, and one input may be overwritten": case(
        "i = identity(x); y = add(x, i)", "add=1 | 2", "y", greedy("add", [(0, 0)])
    ),
    "a value is read twice, and both inputs may be overwritten": case(
        "i = identity(x); y = add(x, i)", "add=0 | 1", "y", greedy("add", BOTH)
    ),
    "an output of another size": case(f"y = {HALF.format('x')}", "slice=1 | 2", "y", greedy("slice")),
    "the memory of a variable is not reused": case("w = weights(8); y = neg(w)", "neg=1 | 2", "y", NEG),
    "scratch memory holds values before and after the call": case(
        "n = neg(x); e = exp(n)",
        "neg=0 exp=1 | 3",
        "e",
        greedy("neg", scratch_bytes=100),
        greedy("exp", (), scratch_bytes=1),
    ),
    "values without elements": case("e = input(0, 3); y = neg(e)", "neg=0 | 1", "y e", NEG),
    "outputs of another size do not use the memory of an input": case(
        f"z = input(16); {PARTS.format(8, 8).replace('(x', '(z')}",
        "split=3=4 | 5",
        "low high",
        greedy("split", [(0, 0), (0, 1)]),
    ),
    "each output takes the memory of one input": case(
        f"{VECTORS}; z = input(3, 8); d = input(3, 8); dx, dg, db = {NORM}",
        "batch_norm_gradient=5=2=3 | 11",
        "dx dg db dy",
        greedy("batch_norm_gradient", EVERY),
    ),
    "a value is placed in the smallest gap that holds it, or at the end": case(
        f"""{FILLED}; sa = {SUM.format("a")}; sc = {SUM.format("c")}
        e = {FILL.format(8)}; f = {FILL.format(16)}""",
        "fill=1 fill=4 fill=5 fill=6 reduce_sum=7 reduce_sum=1 fill=5 fill=2 | 8",
        "b d sa sc e f",
    ),
    **{
        f"adjacent gaps, freed in the order {order}, are joined": case(
            f"""a = {FILL.format(8)}; b = {FILL.format(8)}; c = {FILL.format(8)}; last = {FILL.format(8)}
            {"; ".join(f"s{name} = {NOTHING.format(name)}" for name in order)}; l = {FILL.format(24)}""",
            "fill=1 fill=2 fill=3 fill=4 slice=0 slice=0 slice=0 fill=1 | 5",
            "last l",
        )
        for order in ("abc", "acb", "bac", "bca", "cab", "cba")
    },
    "a larger value begins in the gap at the end": case(
        "n = neg(x); l = fill(value=1.0, shape=(24,), dtype='float64')", "neg=1 fill=1 | 4", "x l"
    ),
}
VARIABLES: dict[str, Case] = {
    "an assigned value is computed in its variable": case(
        "y = neg(x); i = identity(y); s = assign(w, i)", "neg=w | 1", "y"
    ),
    "an assigned value is converted into the layout of its variable": case(
        "e = exp(w); n = neg(x); s = assign(w, n)", "exp=1 neg=1 convert=w | 3", "", *STRANGE
    ),
    "an update in place, not allowed by the kernel": case("n = add(w, x); s = assign(w, n)", "add=1 assign | 2"),
    "an update in place, allowed by the kernel": case("n = add(w, x); s = assign(w, n)", "add=w | 1", "", ADD),
    "an update in place, allowed for the other input": case(
        "n = add(w, x); s = assign(w, n)", "add=0 assign | 1", "", greedy("add", [(1, 0)])
    ),
    "an update that reads the old value twice, allowed once": case(
        "i = identity(w); n = add(w, i); s = assign(w, n)", "add=1 assign | 2", "", ADD
    ),
    "an update that reads the old value twice, allowed twice": case(
        "i = identity(w); n = add(w, i); s = assign(w, n)", "add=w | 1", "", greedy("add", BOTH)
    ),
    "an old value that is read later": case(
        "n = add(w, x); s = assign(w, n); r = reshape(w, shape=(8,)); a = add(r, n)", "add=1 add=0 assign | 2", "a", ADD
    ),
    "an old value that was read before": case("b = neg(w); n = neg(x); s = assign(w, n)", "neg=1 neg=w | 2", "b"),
    "a new value is not overwritten by its readers": case(
        "n = neg(x); s = assign(w, n); a = neg(n); b = neg(a)", "neg=w neg=0 neg=0 | 1", "b", NEG
    ),
    "a fed value": case("s = assign(w, x)", "assign | 1"),
    "a fed value, if the old one is fetched": case("s = assign(w, x)", "convert=1 assign | 2", "w"),
    "a fed value, if the new one is fetched": case("s = assign(w, x)", "assign | 1", "s"),
    "one value for two variables": case("n = neg(x); s = assign(w, n); t = assign(v, n)", "neg=w assign | 1", "n"),
    "two variables that are swapped": case("s = assign(w, v); t = assign(v, w)", "convert=1 convert=v assign | 2"),
    "each of several outputs is computed in its variable": case(
        f"a = weights(3); b = weights(5); {PARTS.format(3, 5)}; s = assign(a, low); t = assign(b, high)",
        "split=a=b | 1",
    ),
    "a received value": case(f"{RECEIVED}; s = assign(w, r)", "recv=~k->here assign | 1"),
}
WIRES: dict[str, Case] = {
    "a sent value is computed on its wire, once for all readers": case(
        f"n = neg(x); {SENT.format('n', 'n', CPU_1)}; {SENT.format('n', 'n', OTHER)}", "neg=~n send send | 1"
    ),
    "a fed value": case(SENT.format("x", "x", CPU_1), "send | 0"),
    "a variable is copied once": case(
        f"w = weights(8); {SENT.format('w', 'w', CPU_1)}; {SENT.format('w', 'w', OTHER)}; n = neg(w); s = assign(w, n)",
        "convert=~w send send neg=w | 1",
        "",
        NEG,
    ),
    "a value that is sent and assigned": case(
        f"w = weights(8); n = neg(x); {SENT.format('n', 'n', CPU_1)}; s = assign(w, n)", "neg=~n send assign | 1"
    ),
    "a value with two names is on two wires": case(
        f"n = neg(x); v = reshape(n, shape=(2, 4)); {SENT.format('n', 'n', CPU_1)}; {SENT.format('v', 'v', CPU_1)}",
        "neg=~n send convert=~v send | 1",
    ),
    "a received value is read on its wire, and copied if it is sent on": case(
        f"{RECEIVED}; i = identity(r); {SENT.format('i', 'i', CPU_1)}; n = neg(r)",
        "recv=~k->here convert=~i send neg=1 | 2",
        "n",
        NEG,
    ),
    **{
        f"a received value of {dtype} is copied before a kernel checks it": case(
            f"r = recv(key='k->here', source='{CPU_1}', shape=(4,), dtype='{dtype}'); i = identity(r)",
            "recv=~k->here convert=1 | 2",
            "i",
        )
        for dtype in ("int64", "int32", "bool", "uint8")
    },
    "received and sent values are not overwritten": case(
        f"{RECEIVED}; g = exp(x); {SENT.format('g', 'g', CPU_1)}; a = neg(r); b = neg(g)",
        "recv=~k->here exp=~g send neg=0 neg=1 | 2",
        "a b",
        NEG,
    ),
    "a sent value may be computed in place on its wire": case(
        f"a = neg(x); b = neg(a); c = neg(b); {SENT.format('c', 'c', CPU_1)}", "neg=~c neg=~c neg=~c send | 0", "", NEG
    ),
}
TABLE = {"arena": ("", ARENA), "variables": ("w = weights(8); v = weights(8); ", VARIABLES), "wires": ("", WIRES)}


@pytest.mark.parametrize(("table", "name"), [(table, name) for table, (_, cases) in TABLE.items() for name in cases])
def test_memory_is_laid_out_as_the_table_says(table: str, name: str) -> None:
    inputs, cases = TABLE[table]
    text, expected, fetch, kernels = cases[name]
    parsed = Text.parse(f"x = input(8); {inputs}{text}", "float64")
    part = order_writes(parsed.graph)
    feeds = {node[0]: node[0] for node in part if node.op == "placeholder"}
    _, placed = play(part, parsed.names(fetch), feeds, fake_registry(*kernels), {})
    steps = [
        instruction.op + "".join(f"={described(placed.places[slot])}" for slot in instruction.outputs)
        for instruction in placed.instructions
    ]
    assert f"{' '.join(steps)} | {placed.arena_bytes // ALIGNMENT}" == expected


def described(place: Place) -> str:
    if place.wire is not None:
        return f"~{place.wire.key}"
    return place.variable or str(place.offset // ALIGNMENT)


def test_key_names_the_sent_tensor() -> None:
    assert sent_tensor(transfer_key(Tensor("scope/x", 1), CPU_0)) == "scope/x:1"
    assert sent_tensor("a") == "a"


SIZES = (0, 1, 64, 65, 500)
NAMES = ("a", "b", "c")


class _Sketch:
    """A random step under construction, whose instructions need not correspond to a graph.

    open: the names of the variables that are not assigned yet and therefore may be read.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.slots: list[Slot] = []
        self.owner: list[int] = []
        self.instructions: list[Instruction] = []
        self.feeds = [self.value(draw.choice(SIZES)) for _ in range(draw.randrange(3))]
        self.residents = {name: self.value(draw.choice(SIZES)) for name in NAMES}
        self.open = set(NAMES)

    def value(self, nbytes: int, owner: int | None = None) -> int:
        """Add a slot, which is an alias of slot ``owner`` if an owner is given; return the number of the new slot."""
        self.slots.append(Slot(TensorSpec((nbytes,), "uint8"), Layout("", nbytes)))
        self.owner.append(len(self.owner) if owner is None else self.owner[owner])
        return len(self.slots) - 1

    def readable(self, *, variables: bool = True) -> list[int]:
        """Return the slots that still hold their value. variables: whether slots of variables are included."""
        closed = {slot for name, slot in self.residents.items() if name not in self.open or not variables}
        return [slot for slot, owner in enumerate(self.owner) if owner not in closed]

    def some(self, most: int) -> list[int]:
        """Return up to ``most`` random slots to read, preferably recent ones."""
        slots = self.readable()
        return self.draw.choices(slots + slots[-2:] * 3, k=self.draw.randint(0, most)) if slots else []

    def call(self) -> None:
        """Add a random instruction that may compute in place."""
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
        """Add an assign of a value that is not in a variable, because values of variables must be copied first."""
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
    """Return the instructions of a random step on one device, before memory is assigned."""
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
def test_all_instructions_except_assigns_remain(arranged: Arranged) -> None:
    placed = assign_memory(arranged)
    kept = {each.node: each.arrangement for each in placed.instructions}
    assert [each.node for each in arranged.instructions if each.node in kept] == list(kept)
    for each in arranged.instructions:
        assert kept.get(each.node, each.arrangement) == each.arrangement
        assert each.node in kept or each.op == "assign"
    assert len(placed.places) == len(arranged.slots)
