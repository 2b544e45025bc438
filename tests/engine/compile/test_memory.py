"""Places in memory: values that share bytes, and values that must not.

A plan is described by its instructions, each with the places of its outputs, and the size of the arena: a number is an
offset into the arena in cache lines of 8 float64, a name is a variable, and ``~key`` a wire.
"""

import numpy as np
import pytest

from runner.engine.compile.passes.transfers import sent_tensor, transfer_key
from runner.engine.compile.plan import Place
from runner.engine.graph.tensor import Tensor
from runner.kernels.contract import Kernel
from tests.engine.compile.laying import LINE, SIZE, Laid, greedy
from tests.engine.compile.passes.graph_text import Text
from tests.engine.run.fake_kernels import REVERSED, VIA_PLAIN, always, converting, fake_kernel, fake_registry
from tests.engine.running import CPU_0, CPU_1, Bench

CHAIN = "; ".join(f"n{k} = neg({f'n{k - 1}' if k else 'x'})" for k in range(9))
VIEWS = "y = neg(x); v = reshape(y, shape=(2, 4))"
NORM = "batch_norm_gradient(z, gamma, mean, variance, d)"
VECTORS = "; ".join(f"{name} = input(8)" for name in ("dy", "gamma", "mean", "variance"))
PARTS = "low, high = split(x, axis=0, sizes=({}, {}))"
FILL, SUM = "fill(value=1.0, shape=({},), dtype='float64')", "reduce_sum({}, axes=(0,))"
FILLED = "; ".join(f"{name} = {FILL.format(size)}" for name, size in {"a": 24, "b": 8, "c": 8, "d": 1}.items())
HALF = "slice({}, begin=(0,), size=(4,))"
SENT = "send({}, key='{}->there', destination='{}')"
OTHER = "/job:worker/task:2/device:cpu:0"
RECEIVED = f"r = recv(key='k->here', source='{CPU_1}', shape=(8,), dtype='float64')"
BOTH, EVERY = ((0, 0), (1, 0)), tuple((i, o) for i in range(5) for o in range(3))

NEG, ADD = greedy("neg"), greedy("add")
STRANGE = fake_kernel("exp", always(REVERSED, REVERSED)), fake_kernel("convert", converting(VIA_PLAIN))

Case = tuple[str, str, tuple[Kernel, ...], str]
ARENA: dict[str, Case] = {
    "a value frees its memory at its last read": (
        CHAIN,
        "n8",
        (),
        "neg=1 neg=0 neg=1 neg=0 neg=1 neg=0 neg=1 neg=0 neg=1 | 2",
    ),
    "a chain in place needs the memory of one value": (
        CHAIN,
        "n8",
        (NEG,),
        "neg=0 neg=0 neg=0 neg=0 neg=0 neg=0 neg=0 neg=0 neg=0 | 1",
    ),
    "a value that is still read keeps its memory": (
        "a = neg(x); b = neg(a); y = add(b, x)",
        "y",
        (NEG,),
        "neg=1 neg=1 add=2 | 3",
    ),
    "fetched values keep their memory to the end": (
        "a = neg(x); b = neg(a); c = neg(b); i = identity(c); d = neg(c)",
        "x b i d",
        (NEG,),
        "neg=1 neg=1 neg=2 neg=3 | 4",
    ),
    "a value that no node reads frees its memory at once": (
        "a = neg(x); b = neg(x); c = neg(x)",
        "",
        (),
        "neg=1 neg=1 neg=1 | 2",
    ),
    "an alias keeps memory in use": (
        f"{VIEWS}; e = exp(x); w = reshape(e, shape=(2, 4)); l = neg(w); i = identity(v); s = add(l, i)",
        "s",
        (ADD, NEG),
        "neg=1 exp=2 neg=2 add=2 | 3",
    ),
    "an output uses the memory of an input that it sees through an alias": (
        f"{VIEWS}; e = exp(v)",
        "e",
        (greedy("exp"),),
        "neg=1 exp=1 | 2",
    ),
    "the second of two inputs may be overwritten": (
        "b = input(8); y = add(x, b)",
        "y",
        (greedy("add", [(1, 0)]),),
        "add=1 | 2",
    ),
    "both inputs may be overwritten": ("b = input(8); y = add(x, b)", "y", (greedy("add", BOTH),), "add=0 | 2"),
    "no input may be overwritten": ("b = input(8); y = add(x, b)", "y", (), "add=2 | 3"),
    "a value that is read twice, one place may be overwritten": (
        "i = identity(x); y = add(x, i)",
        "y",
        (greedy("add", [(0, 0)]),),
        "add=1 | 2",
    ),
    "a value that is read twice, both places may be overwritten": (
        "i = identity(x); y = add(x, i)",
        "y",
        (greedy("add", BOTH),),
        "add=0 | 1",
    ),
    "an output of another size": (f"y = {HALF.format('x')}", "y", (greedy("slice"),), "slice=1 | 2"),
    "the memory of a variable is not reused": ("w = weights(8); y = neg(w)", "y", (NEG,), "neg=1 | 2"),
    "scratch memory is used by others before and after the call": (
        "n = neg(x); e = exp(n)",
        "e",
        (greedy("neg", scratch_bytes=100), greedy("exp", (), scratch_bytes=1)),
        "neg=0 exp=1 | 3",
    ),
    "values without elements": ("e = input(0, 3); y = neg(e)", "y e", (NEG,), "neg=0 | 1"),
    "an input gives its memory to no output of another size": (
        f"z = input(16); {PARTS.format(8, 8).replace('(x', '(z')}",
        "low high",
        (greedy("split", [(0, 0), (0, 1)]),),
        "split=3=4 | 5",
    ),
    "each output takes the memory of one input": (
        f"{VECTORS}; z = input(3, 8); d = input(3, 8); dx, dg, db = {NORM}",
        "dx dg db dy",
        (greedy("batch_norm_gradient", EVERY),),
        "batch_norm_gradient=5=2=3 | 11",
    ),
    "a value is placed in the smallest gap that holds it, or at the end": (
        f"""{FILLED}; sa = {SUM.format("a")}; sc = {SUM.format("c")}
        e = {FILL.format(8)}; f = {FILL.format(16)}""",
        "b d sa sc e f",
        (),
        "fill=1 fill=4 fill=5 fill=6 reduce_sum=7 reduce_sum=1 fill=5 fill=2 | 8",
    ),
    **{
        f"adjacent gaps, freed in the order {order}, are joined": (
            f"""a = {FILL.format(8)}; b = {FILL.format(8)}; c = {FILL.format(8)}; last = {FILL.format(8)}
            {"; ".join(f"s{name} = slice({name}, begin=(0,), size=(0,))" for name in order)}; l = {FILL.format(24)}""",
            "last l",
            (),
            "fill=1 fill=2 fill=3 fill=4 slice=0 slice=0 slice=0 fill=1 | 5",
        )
        for order in ("abc", "acb", "bac", "bca", "cab", "cba")
    },
    "a gap at the end is the beginning of a larger value": (
        "n = neg(x); l = fill(value=1.0, shape=(24,), dtype='float64')",
        "x l",
        (),
        "neg=1 fill=1 | 4",
    ),
}
VARIABLES: dict[str, Case] = {
    "an assigned value is computed in its variable": (
        "w = weights(8); y = neg(x); i = identity(y); s = assign(w, i)",
        "y",
        (),
        "neg=w | 1",
    ),
    "an assigned value is converted into the layout of its variable": (
        "w = weights(8); e = exp(w); n = neg(x); s = assign(w, n)",
        "",
        STRANGE,
        "exp=1 neg=1 convert=w | 3",
    ),
    "an update in place, not allowed by the kernel": (
        "w = weights(8); n = add(w, x); s = assign(w, n)",
        "",
        (),
        "add=1 assign | 2",
    ),
    "an update in place, allowed by the kernel": (
        "w = weights(8); n = add(w, x); s = assign(w, n)",
        "",
        (ADD,),
        "add=w | 1",
    ),
    "an update in place, allowed for the other input": (
        "w = weights(8); n = add(w, x); s = assign(w, n)",
        "",
        (greedy("add", [(1, 0)]),),
        "add=0 assign | 1",
    ),
    "an update that reads the old value twice, allowed once": (
        "w = weights(8); i = identity(w); n = add(w, i); s = assign(w, n)",
        "",
        (ADD,),
        "add=1 assign | 2",
    ),
    "an update that reads the old value twice, allowed twice": (
        "w = weights(8); i = identity(w); n = add(w, i); s = assign(w, n)",
        "",
        (greedy("add", BOTH),),
        "add=w | 1",
    ),
    "an old value that is read later": (
        "w = weights(8); n = add(w, x); s = assign(w, n); v = reshape(w, shape=(8,)); a = add(v, n)",
        "a",
        (ADD,),
        "add=1 add=0 assign | 2",
    ),
    "an old value that was read before": (
        "w = weights(8); b = neg(w); n = neg(x); s = assign(w, n)",
        "b",
        (),
        "neg=1 neg=w | 2",
    ),
    "a new value is not overwritten by its readers": (
        "w = weights(8); n = neg(x); s = assign(w, n); a = neg(n); b = neg(a)",
        "b",
        (NEG,),
        "neg=w neg=0 neg=0 | 1",
    ),
    "a fed value": ("w = weights(8); s = assign(w, x)", "", (), "assign | 1"),
    "a fed value, and the old one is fetched": ("w = weights(8); s = assign(w, x)", "w", (), "convert=1 assign | 2"),
    "a fed value, and the new one is fetched": ("w = weights(8); s = assign(w, x)", "s", (), "assign | 1"),
    "one value for two variables": (
        "w = weights(8); v = weights(8); n = neg(x); s = assign(w, n); t = assign(v, n)",
        "n",
        (),
        "neg=w assign | 1",
    ),
    "two variables that are swapped": (
        "w = weights(8); v = weights(8); s = assign(w, v); t = assign(v, w)",
        "",
        (),
        "convert=1 convert=v assign | 2",
    ),
    "each of several outputs in its variable": (
        f"w = weights(3); v = weights(5); {PARTS.format(3, 5)}; s = assign(w, low); t = assign(v, high)",
        "",
        (),
        "split=w=v | 1",
    ),
    "a received value": (f"w = weights(8); {RECEIVED}; s = assign(w, r)", "", (), "recv=~k->here assign | 1"),
}
WIRES: dict[str, Case] = {
    "a sent value is computed on its wire, once for all readers": (
        f"n = neg(x); {SENT.format('n', 'n', CPU_1)}; {SENT.format('n', 'n', OTHER)}",
        "",
        (),
        "neg=~n send send | 1",
    ),
    "a fed value": (SENT.format("x", "x", CPU_1), "", (), "send | 0"),
    "a variable is copied once": (
        f"w = weights(8); {SENT.format('w', 'w', CPU_1)}; {SENT.format('w', 'w', OTHER)}; n = neg(w); s = assign(w, n)",
        "",
        (NEG,),
        "convert=~w send send neg=w | 1",
    ),
    "a value that is sent and assigned": (
        f"w = weights(8); n = neg(x); {SENT.format('n', 'n', CPU_1)}; s = assign(w, n)",
        "",
        (),
        "neg=~n send assign | 1",
    ),
    "a value with two names is on two wires": (
        f"n = neg(x); v = reshape(n, shape=(2, 4)); {SENT.format('n', 'n', CPU_1)}; {SENT.format('v', 'v', CPU_1)}",
        "",
        (),
        "neg=~n send convert=~v send | 1",
    ),
    "a received value is read on its wire, and copied if it is sent on": (
        f"{RECEIVED}; i = identity(r); {SENT.format('i', 'i', CPU_1)}; n = neg(r)",
        "n",
        (NEG,),
        "recv=~k->here convert=~i send neg=1 | 2",
    ),
    **{
        f"a received value of {dtype} is copied before a kernel checks it": (
            f"r = recv(key='k->here', source='{CPU_1}', shape=(4,), dtype='{dtype}'); i = identity(r)",
            "i",
            (),
            "recv=~k->here convert=1 | 2",
        )
        for dtype in ("int64", "int32", "bool", "uint8")
    },
    "received and sent values are not overwritten": (
        f"{RECEIVED}; g = exp(x); {SENT.format('g', 'g', CPU_1)}; a = neg(r); b = neg(g)",
        "a b",
        (NEG,),
        "recv=~k->here exp=~g send neg=0 neg=1 | 2",
    ),
    "a sent value may be computed in place on its wire": (
        f"a = neg(x); b = neg(a); c = neg(b); {SENT.format('c', 'c', CPU_1)}",
        "",
        (NEG,),
        "neg=~c neg=~c neg=~c send | 0",
    ),
}
TABLE = {"arena": ARENA, "variables": VARIABLES, "wires": WIRES}


def laid_out(text: str, fetch: str, *kernels: Kernel) -> Laid:
    parsed = Text.parse(f"x = input(8); {text}", "float64")
    return Laid(parsed.graph, parsed.names(fetch), *kernels)


def described(laid: Laid) -> str:
    steps = [
        instruction.op + "".join(f"={_place(laid.placed.places[slot])}" for slot in instruction.outputs)
        for instruction in laid.placed.instructions
    ]
    return f"{' '.join(steps)} | {laid.placed.arena_bytes // LINE}"


def _place(place: Place) -> str:
    if place.wire is not None:
        return f"~{place.wire.key}"
    return place.variable or str(place.offset // LINE)


@pytest.mark.parametrize(("table", "name"), [(table, name) for table, cases in TABLE.items() for name in cases])
def test_memory_is_laid_out_as_the_table_says(table: str, name: str) -> None:
    text, fetch, kernels, expected = TABLE[table][name]
    assert described(laid_out(text, fetch, *kernels)) == expected


def test_key_names_the_sent_tensor() -> None:
    assert sent_tensor(transfer_key(Tensor("scope/x", 1), CPU_0)) == "scope/x:1"
    assert sent_tensor("a") == "a"


VIEWS_OF_W = ("", "v = identity(w)", "v = reshape(w, shape=(2, 4))", "i = identity(w); v = reshape(i, shape=(8,))")


@pytest.mark.parametrize("view", VIEWS_OF_W)
@pytest.mark.parametrize("pairs", [(), ((0, 0),), BOTH])
def test_fetched_variable_has_its_value_at_the_start_of_the_step(view: str, pairs: tuple[tuple[int, int], ...]) -> None:
    text = Text.parse(f"x = input(8); w = weights(8); n = add(w, x); {view}\ns = assign(w, n)", "float64")
    fetches = text.names(f"{'v' if view else 'w'} n s")
    bench = Bench(text.graph, fake_registry(greedy("add", pairs)), fetches)
    bench.put("w", np.zeros(SIZE))
    value = np.linspace(-1.0, 1.0, SIZE)
    for step in range(3):
        old, *fetched = bench.run({Tensor("x"): value}, step).values()
        np.testing.assert_array_equal(old.ravel(), step * value)
        for each in (*fetched, bench.value("w")):
            np.testing.assert_array_equal(each, step * value + value)
