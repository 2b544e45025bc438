"""Updates that compute their gradient: graphs before and after, sizes, kernels."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.compile.passes.fusion_rules import SMALLEST_BYTES, fuse_updates
from runner.engine.compile.passes.optimize import FUSIONS, optimize
from runner.engine.compile.passes.order_writes import order_writes
from runner.engine.compile.passes.rewriting import Roots
from runner.engine.graph.serialize import verify
from runner.kernels.registry import Registry
from runner.optimizers.adam import Adam
from runner.optimizers.sgd import Momentum
from tests.engine.compile.passes.exactness import assert_unchanged, counts, roots_of
from tests.engine.compile.passes.graph_text import Case, Text, check
from tests.engine.compile.passes.training_graphs import NETWORKS, training_step
from tests.engine.graph.random_graphs import TrainingSample, training_samples
from tests.engine.run.fake_kernels import PLAIN, always, fake_kernel, fake_registry, reference_registry

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
    "a name that is taken": Case(
        f"{DENSE}; dw__reduce_sum = tanh(x); {NEW}",
        f"{TOTAL.replace('sum =', 'sum_1 =')}; dw__reduce_sum = tanh(x); {FUSED_NEW}",
        fetch="new db dw/reduce_sum",
    ),
    "a product of plain factors": Case(f"a = input(3, 5); b = input(5, 2); dw = matmul(a, b); {NEW}"),
    "a gradient of inputs": Case(f"a = input(3, 5); b = input(2, 5); dw = matmul(a, b, transpose_b=True); {NEW}"),
    "a product with ReLU": Case(f"dw = matmul_fused(x, dy, transpose_a=True, relu=True); {NEW}"),
    "a product with bias": Case(f"b = input(2); dw = matmul_fused(x, dy, b, transpose_a=True, bias=True); {NEW}"),
    "no product": Case(f"dw = tanh(w); {NEW}"),
    "another reader": Case(f"{DENSE}; {NEW}; s = square(dw)", fetch="new s"),
    "a fetch": Case(f"{DENSE}; {NEW}", fetch="new dw"),
    "a target": Case(f"{DENSE}; {NEW}", targets="dw"),
    "a node that waits": Case(f"{DENSE}; {NEW}; t = tanh(x, after='dw')", fetch="new t"),
    "a gradient that is read twice": Case(f"{DENSE}; {NEW.replace('(v', '(dw')}"),
    "an update by another op": Case(f"{DENSE}; y = sub(w, dw)"),
    # Of weights that two layers share, or of two shares of a batch.
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
def test_updates_compute_their_gradient_as_the_table_says(name: str) -> None:
    check(replace(UPDATE_CASES[name], dtype="float64"), FUSE_UPDATES, UPDATES)


LARGE = """
    x = input(2, 1024, on='here'); dy = input(2, {columns}, on='here')
    w = weights(1024, {columns}, on='here', dtype='float32')
    dw = matmul(x, dy, transpose_a=True, on='here')
"""
FUSABLE = {
    "matmul_elementwise": (
        fuse_updates,
        "float32",
        "y = elementwise(w, dw, program='mul 1 #0.5; sub 0 2', outputs=(3,), on='here')",
    )
}


def op_of_large_product(op: str, columns: int, registry: Registry | None) -> str:
    """The op of the node with or after a product with weights (1024, columns)."""
    run, dtype, last = FUSABLE[op]
    text = Text.parse(LARGE.format(columns=columns) + last, dtype)
    return run(text.graph, Roots.of(text.names("y")), registry)[0].nodes["y"].op


@pytest.mark.parametrize("op", FUSABLE)
def test_only_large_products_with_a_faster_kernel_are_fused(op: str) -> None:
    assert SMALLEST_BYTES == 4 * 1024 * 1024
    kernel = replace(fake_kernel(op, always(PLAIN, PLAIN)), dtypes=frozenset({"bfloat16", "float32"}))
    assert op_of_large_product(op, 1023, None) != op
    assert op_of_large_product(op, 1024, None) == op
    assert op_of_large_product(op, 1024, fake_registry(kernel)) == op
    for registry in (reference_registry(), Registry(), fake_registry(replace(kernel, dtypes=frozenset({"float64"})))):
        assert op_of_large_product(op, 1024, registry) != op


def test_an_update_in_place_waits_for_all_that_read_the_weights() -> None:
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
def test_fused_updates_of_any_graph_are_equal_bit_for_bit(sample: TrainingSample) -> None:
    graph, moved = optimize(sample.graph, roots_of(sample.graph, sample.fetches), FUSIONS)
    fetches = [moved.get(tensor, tensor) for tensor in sample.fetches]
    roots = roots_of(graph, fetches)
    result, again = FUSE_UPDATES(graph, roots)
    assert_unchanged(graph, result, again, fetches, sample.feeds)
    assert FUSE_UPDATES(result, roots.after(again))[0].nodes == result.nodes
