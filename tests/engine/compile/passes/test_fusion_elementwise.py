"""Fusion of element-wise nodes into groups, and of optimizer updates with the products that compute gradients.

Each group is as large as possible, is connected, and returns every value that nodes outside the group need.
"""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.compile.passes.fusion_elementwise import MAX_STEPS, fuse_elementwise
from runner.engine.compile.passes.fusion_rules import SMALLEST_BYTES, fuse_updates
from runner.engine.compile.passes.optimize import FUSIONS, optimize
from runner.engine.compile.passes.order_writes import order_writes
from runner.engine.compile.passes.rewriting import Roots
from runner.engine.graph.verify import verify
from runner.kernels.elementwise import FUNCTIONS
from runner.kernels.registry import Registry
from runner.optimizers import Adam, Momentum
from tests.engine.compile.passes.graph_text import Case, Text, assert_unchanged, check, counts, roots_of
from tests.engine.compile.passes.training_graphs import NETWORKS, training_step
from tests.engine.graph.random_graphs import Sample, training_samples
from tests.engine.run.fake_kernels import PLAIN, always, fake_kernel, fake_registry, reference_registry

INPUTS = "a = input(2, 3); b = input(2, 3); c = input(2, 3); rate = input()"


def node(name: str, inputs: str, program: str, *outputs: int, more: str = "") -> str:
    return f"{name} = elementwise({inputs}, program='{program}', outputs={outputs}{more})"


GROUPS = {
    "a chain has the name of its last node": Case(
        "m = mul(b, rate); y = sub(a, m)", node("y", "b, rate, a", "mul 0 1; sub 2 3", 4)
    ),
    **{
        f"the function {function}": Case(
            f"p = abs(a); y = {function}({'p, b' if arity == 2 else 'p'})",
            node("y", "a, b", f"abs 0; {function} 2 1", 3) if arity == 2 else node("y", "a", f"abs 0; {function} 1", 2),
        )
        for function, (arity, _) in FUNCTIONS.items()
    },
    "add_n adds its inputs from left to right": Case(
        "t = add_n(a, b, a, c); y = square(t)", node("y", "a, b, c", "add 0 1; add 3 0; add 4 2; square 5", 6)
    ),
    "fills of any shape are literals": Case(
        """h = fill(value=0.1, shape=(), dtype='float32'); x = mul(a, h)
        z = fill(value=-0.0, shape=(3,), dtype='float32'); u = add(z, x)
        i = fill(value=-1e999, shape=(2, 3), dtype='float32'); y = maximum(u, i)""",
        f"""h = fill(value=0.1, shape=(), dtype='float32')
        z = fill(value=-0.0, shape=(3,), dtype='float32')
        i = fill(value=-1e999, shape=(2, 3), dtype='float32')
        {node("y", "a", "mul 0 #0.1; add #-0.0 1; maximum 2 #-inf", 3)}""",
    ),
    "a fill that waits for a node is an input": Case(
        "h = fill(value=0.1, shape=(), dtype='float32', after='b'); x = mul(a, h); y = abs(x)",
        f"h = fill(value=0.1, shape=(), dtype='float32', after='b'); {node('y', 'a, h', 'mul 0 1; abs 2', 3)}",
    ),
    "a chain of scalars is a separate group": Case(
        "s = square(rate); r = neg(s); m = mul(a, r); y = abs(m)",
        f"{node('r', 'rate', 'square 0; neg 1', 2)}; {node('y', 'a, r', 'mul 0 1; abs 2', 3)}",
    ),
    "a single node is not fused": Case("s = neg(a); e = exp(s); y = neg(e)"),
    "a group ends at a value that is read outside": Case(
        "s = square(a); i = neg(s); d = add(i, b); y = abs(d); t = reduce_sum(i, axes=(0, 1))",
        f"""{node("i", "a", "square 0; neg 1", 2)}; {node("y", "i, b", "add 0 1; abs 2", 3)}
        t = reduce_sum(i, axes=(0, 1))""",
        fetch="y t",
    ),
    "no path leaves a group and enters it again": Case(
        "i = neg(a); e = exp(i); d = add(i, e); y = abs(d)",
        f"i = neg(a); e = exp(i); {node('y', 'i, e', 'add 0 1; abs 2', 3)}",
    ),
    "a value that two groups read is in neither group": Case(
        "s = neg(a); d = add(s, b); y = abs(d); e = add(s, c); z = abs(e)",
        f"s = neg(a); {node('y', 's, b', 'add 0 1; abs 2', 3)}; {node('z', 's, c', 'add 0 1; abs 2', 3)}",
        fetch="y z",
    ),
    "fetched values are outputs": Case(
        "i = square(a); d = abs(i); y = neg(d)", node("y", "a", "square 0; abs 1; neg 2", 3, 1), fetch="i y"
    ),
    "assigned values are outputs, and the assign nodes follow the group": Case(
        """v = weights(2, 3); w = weights(2, 3); n = fill(value=0.9, shape=(), dtype='float32'); m = mul(v, n)
        nv = sub(m, a); wv = assign(v, nv, beside='v'); nw = add(w, nv); ww = assign(w, nw, beside='w')""",
        """v = weights(2, 3); w = weights(2, 3); n = fill(value=0.9, shape=(), dtype='float32')
        nw, p = elementwise(v, a, w, program='mul 0 #0.9; sub 3 1; add 2 4', outputs=(5, 4))
        wv = assign(v, p, beside='v'); ww = assign(w, nw, beside='w')""",
        fetch="a",
    ),
    "a value is the last of its group if its assign is read": Case(
        "v = weights(2, 3); n = neg(a); i = square(n); w = assign(v, i); e = exp(w); d = add(i, e); y = abs(d)",
        f"""v = weights(2, 3); {node("i", "a", "neg 0; square 1", 2)}; w = assign(v, i); e = exp(w)
        {node("y", "i, e", "add 0 1; abs 2", 3)}""",
    ),
    "a value is the last of its group if a node waits for its assign": Case(
        """v = weights(2, 3); n = neg(a); i = square(n); w = assign(v, i); e = exp(b, after='w')
        d = add(i, e); y = abs(d)""",
        f"""v = weights(2, 3); {node("i", "a", "neg 0; square 1", 2)}; w = assign(v, i); e = exp(b, after='w')
        {node("y", "i, e", "add 0 1; abs 2", 3)}""",
    ),
    "a node that another node waits for keeps its name": Case(
        "s = square(a); i = neg(s); late = exp(b, after='i'); y = abs(i)",
        f"{node('i', 'a', 'square 0; neg 1', 2)}; late = exp(b, after='i'); y = abs(i)",
        fetch="y late",
    ),
    "a reader of a variable does not wait for the assign of the variable": Case(
        "v = weights(2, 3); s = square(v); w = assign(v, a); d = add(s, b, after='w'); y = abs(d)",
        f"""v = weights(2, 3); s = square(v); w = assign(v, a)
        {node("y", "s, b", "add 0 1; abs 2", 3, more=", after='w'")}""",
    ),
    "a target keeps its name": Case("i = square(a); y = abs(i)", targets="i"),
    "another device": Case("t = neg(a, on='there'); y = abs(t)"),
    "another shape": Case("r = input(3); n = neg(r); d = add(a, n)"),
    "another dtype": Case("i = input(2, dtype='int64'); n = neg(i); y = neg(n)"),
    "a scalar that is broadcast": Case(
        "n = neg(rate); w = fill(value=2.0, shape=(2, 3), dtype='float32'); m = mul(n, w); y = abs(m)"
    ),
    "layer, device and control inputs": Case(
        "i = square(a, on='there', layer='one', after='b'); y = neg(i, on='there', layer='two', after='c')",
        node("y", "a", "square 0; neg 1", 2, more=", on='there', layer='two', after='c b'"),
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_elementwise_nodes_are_fused_as_the_table_says(name: str) -> None:
    check(GROUPS[name], fuse_elementwise, INPUTS)


def test_length_of_a_program_is_limited() -> None:
    count = 2 * MAX_STEPS + 3
    before = ["y0 = relu(a)", *(f"y{k} = relu(y{k - 1})" for k in range(1, count))]
    after, source = [], "a"
    for last in (2, 2 + MAX_STEPS, count - 1):
        length = 3 if last == 2 else MAX_STEPS
        after.append(node(f"y{last}", source, "; ".join(f"relu {k}" for k in range(length)), length))
        source = f"y{last}"
    check(Case("\n".join(before), "\n".join(after)), fuse_elementwise, INPUTS)


UPDATES = "x = input(4, 3); dy = input(4, 2)\nw = weights(3, 2); v = weights(3, 2); rate = input()\n"
DENSE, PRODUCT = "dw, db = matmul_bias_gradient(x, dy)", "dw = matmul(x, dy, transpose_a=True)"
MOMENTUM = "program='mul 0 3; sub 4 1; add 2 5', outputs=(6, 5)"
NEW, FUSED_NEW = (
    f"new, velocity = elementwise(v, dw, w, rate, {MOMENTUM})",
    f"new, velocity = matmul_elementwise(x, dy, v, w, rate, transpose_a=True, product=1, {MOMENTUM})",
)
TOTAL = "dw__reduce_sum = reduce_sum(dy, axes=(0,))"
UPDATE_CASES = {
    "matmul": Case(f"{PRODUCT}; {NEW}", FUSED_NEW),
    "matmul_fused": Case(f"{PRODUCT.replace('matmul', 'matmul_fused')}; {NEW}", FUSED_NEW),
    "matmul_bias_gradient": Case(
        f"{DENSE}; late = tanh(db); {NEW}; a = assign(w, new); b = assign(v, velocity)",
        f"{TOTAL}; late = tanh(dw__reduce_sum); {FUSED_NEW}; a = assign(w, new); b = assign(v, velocity)",
        fetch="new velocity late db",
    ),
    "factors of bfloat16": Case(
        """x16 = input(4, 3, dtype='bfloat16'); dy16 = input(4, 2, dtype='bfloat16')
        w32 = weights(3, 2, dtype='float32')
        dw, db = matmul_bias_gradient(x16, dy16, dtype='float32')
        new = elementwise(w32, dw, program='sub 0 1', outputs=(2,))""",
        """x16 = input(4, 3, dtype='bfloat16'); dy16 = input(4, 2, dtype='bfloat16')
        w32 = weights(3, 2, dtype='float32')
        dw__x = cast(x16, dtype='float32'); dw__dy = cast(dy16, dtype='float32')
        dw__reduce_sum = reduce_sum(dw__dy, axes=(0,))
        new = matmul_elementwise(dw__x, dw__dy, w32, transpose_a=True, product=1, program='sub 0 1', outputs=(2,))""",
        fetch="new db",
    ),
    "the name of the sum is already used": Case(
        f"{DENSE}; dw__reduce_sum = tanh(x); {NEW}",
        f"{TOTAL.replace('sum =', 'sum_1 =')}; dw__reduce_sum = tanh(x); {FUSED_NEW}",
        fetch="new db dw/reduce_sum",
    ),
    "a product without a transpose": Case(f"a = input(3, 5); b = input(5, 2); dw = matmul(a, b); {NEW}"),
    "a gradient of the input": Case(f"a = input(3, 5); b = input(2, 5); dw = matmul(a, b, transpose_b=True); {NEW}"),
    "a product with ReLU": Case(f"dw = matmul_fused(x, dy, transpose_a=True, relu=True); {NEW}"),
    "a product with bias": Case(f"b = input(2); dw = matmul_fused(x, dy, b, transpose_a=True, bias=True); {NEW}"),
    "a gradient that is read twice": Case(f"{DENSE}; {NEW.replace('(v', '(dw')}"),
    "an update by another op": Case(f"{DENSE}; y = sub(w, dw)"),
    # A gradient is the sum of two parts if two layers share the weights or if the batch is split in two.
    "parts of a gradient": Case(f"{DENSE}; second = {PRODUCT[5:]}; {NEW.replace('(v', '(second')}"),
    "an update on another device": Case(f"{DENSE}; {NEW[:-1]}, on='there')"),
    "an operand from another device": Case(f"t = tanh(w, on='there'); {DENSE}; {NEW.replace('(v', '(t')}"),
    "a variable of another device": Case(f"u = weights(3, 2, on='there'); {DENSE}; {NEW.replace('(v', '(u')}"),
    "a scalar from another device": Case(
        f"s = square(rate, on='there'); {PRODUCT}; {NEW.replace('rate', 's')}",
        f"s = square(rate, on='there'); {FUSED_NEW.replace('rate', 's')}",
    ),
    "control inputs": Case(
        f"a = tanh(x); b = tanh(x); {DENSE[:-1]}, after='a'); {NEW[:-1]}, after='b')",
        f"a = tanh(x); b = tanh(x); {TOTAL[:-1]}, after='a'); {FUSED_NEW[:-1]}, after='a b')",
        fetch="new db",
    ),
}

FUSE_UPDATES = partial(fuse_updates, smallest_bytes=0)


@pytest.mark.parametrize("name", UPDATE_CASES)
def test_updates_are_fused_with_gradients_as_the_table_says(name: str) -> None:
    check(replace(UPDATE_CASES[name], dtype="float64"), FUSE_UPDATES, UPDATES)


LARGE = """
    x = input(2, 1024, on='here'); dy = input(2, {columns}, on='here')
    w = weights(1024, {columns}, on='here', dtype='float32')
    dw = matmul(x, dy, transpose_a=True, on='here')
"""


def is_fused(columns: int, registry: Registry | None) -> bool:
    """Return whether a gradient of shape (1024, columns) is fused with the update that reads it."""
    update = "y = elementwise(w, dw, program='mul 1 #0.5; sub 0 2', outputs=(3,), on='here')"
    text = Text.parse(LARGE.format(columns=columns) + update, "float32")
    return fuse_updates(text.graph, Roots.of(text.names("y")), registry)[0].nodes["y"].op == "matmul_elementwise"


def test_only_large_products_with_a_faster_kernel_are_fused() -> None:
    assert SMALLEST_BYTES == 4 * 1024 * 1024
    kernel = replace(fake_kernel("matmul_elementwise", always(PLAIN, PLAIN)), dtypes=frozenset({"bfloat16", "float32"}))
    assert not is_fused(1023, None)
    assert is_fused(1024, None)
    assert is_fused(1024, fake_registry(kernel))
    for registry in (reference_registry(), Registry(), fake_registry(replace(kernel, dtypes=frozenset({"float64"})))):
        assert not is_fused(1024, registry)


def test_update_in_place_waits_for_all_readers_of_the_weights() -> None:
    text = Text.parse(
        f"{UPDATES}{DENSE}; {NEW}; a = assign(w, new); b = assign(v, velocity); dx = matmul(dy, w, transpose_b=True)"
    )
    result, _ = FUSE_UPDATES(text.graph, Roots.of(text.names("dx")))
    ordered = order_writes(result)
    verify(ordered)
    assert ordered.nodes["new"].control_inputs == ("dx",)
    assert list(ordered.nodes).index("dx") < list(ordered.nodes).index("new")
    assert not any(ordered.nodes[name].control_inputs for name in ("a", "b"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("optimizer", [Momentum(weight_decay=1e-3), Adam()], ids=["momentum", "adam"])
def test_fused_updates_of_a_training_step_are_equal_bit_for_bit(optimizer: Momentum | Adam, dtype: str) -> None:
    step = training_step(NETWORKS["lenet"], optimizer, dtype)
    graph, moved = optimize(step.graph, step.roots, FUSIONS)
    roots = step.roots.after(moved)
    result, again = FUSE_UPDATES(graph, roots)
    assert_unchanged(graph, result, again, sorted(roots.fetches), step.feeds)
    assert counts(result)["matmul_elementwise"] == counts(graph)["matmul_bias_gradient"] == 2
    assert counts(result)["matmul_bias_gradient"] == 0


@settings(max_examples=100)
@given(st.sampled_from(["float64", "float32"]).flatmap(lambda dtype: training_samples(dtype=dtype)))
def test_fused_updates_of_any_graph_are_equal_bit_for_bit(sample: Sample) -> None:
    graph, moved = optimize(sample.graph, roots_of(sample.graph, sample.fetches), FUSIONS)
    fetches = [moved.get(tensor, tensor) for tensor in sample.fetches]
    roots = roots_of(graph, fetches)
    result, again = FUSE_UPDATES(graph, roots)
    assert_unchanged(graph, result, again, fetches, sample.feeds)
    assert FUSE_UPDATES(result, roots.after(again))[0].nodes == result.nodes
