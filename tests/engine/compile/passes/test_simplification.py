"""Nodes that compute their input are not read, and equal nodes are merged; nodes that differ in one bit stay."""

import numpy as np
import pytest

from runner.engine.compile.passes.simplification import merge_common_subexpressions, remove_identities
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor
from tests.engine.compile.passes.exactness import Array
from tests.engine.compile.passes.graph_text import THERE, Case, check

FILL = "n = fill(value={}, shape={}, dtype='float32')"
SHAPE = "shape=(2, 3)"
ONE, ZERO = FILL.format(1.0, ()), FILL.format(0.0, ())
SAME = (
    "y = identity(x)",
    "y = stop_gradient(x)",
    f"y = reshape(x, {SHAPE})",
    "y = cast(x, dtype='float32')",
    f"y = broadcast_to(x, {SHAPE})",
    "y = add_n(x)",
    f"{ONE}; y = mul(x, n)",
    f"{FILL.format(1.0, (2, 3))}; y = mul(n, x)",
    f"{FILL.format(1.0, (3,))}; y = div(x, n)",
    f"{ZERO}; y = sub(x, n)",
)
DIFFERENT = (
    f"{ZERO}; y = add(x, n)",
    f"{FILL.format(-0.0, ())}; y = sub(x, n)",
    f"{ZERO}; y = sub(n, x)",
    f"{ONE}; y = div(n, x)",
    f"{FILL.format(-1.0, ())}; y = mul(x, n)",
    f"{FILL.format(1.0, (4, 2, 3))}; y = mul(x, n)",
    "y = reshape(x, shape=(3, 2))",
    "y = cast(x, dtype='float64')",
    "y = broadcast_to(x, shape=(4, 2, 3))",
    f"{FILL.format(0.0, (2, 3))}; y = add_n(x, n)",
    "y = convert(x)",
    "o = neg(x); y = identity(x, after='o')",
    "y = identity(x, on='there')",
    "y = reshape(x, shape=(6,), on='there'); z = reshape(y, shape=(2, 3))",
)
CHAINS = {
    "reshapes there and back": Case(
        f"a = reshape(x, shape=(3, 2)); y = reshape(a, {SHAPE}); r = relu(y)",
        f"a = reshape(x, shape=(3, 2)); y = reshape(x, {SHAPE}); r = relu(x)",
    ),
    "a reshape of a reshape": Case(
        "a = reshape(x, shape=(6,)); y = reshape(a, shape=(1, 6)); r = relu(y)",
        "a = reshape(x, shape=(6,)); y = reshape(x, shape=(1, 6)); r = relu(y)",
    ),
    "several": Case(
        f"a = stop_gradient(x); {ONE}; b = mul(a, n); y = identity(b); r = relu(y)",
        f"a = stop_gradient(x); {ONE}; b = mul(x, n); y = identity(x); r = relu(x)",
    ),
    "an assign names its variable and gives its value": Case(
        "v = weights(2, 3); i = identity(v); new = neg(i); w = assign(v, new); r = exp(w)",
        "v = weights(2, 3); i = identity(v); new = neg(v); w = assign(v, new); r = exp(new)",
    ),
}


def awkward(graph: Graph) -> dict[Tensor, Array]:
    """Zeros of both signs, infinities, NaN and a subnormal number."""
    value = np.array([[0.0, -0.0, np.inf], [-np.inf, np.nan, 1e-45]], np.float32)
    return {node[0]: value for node in graph if node.op in ("placeholder", "variable")}


@pytest.mark.parametrize("text", SAME)
def test_node_that_computes_its_input_is_not_read(text: str) -> None:
    case = Case(f"{text}; r = relu(y)", f"{text}; r = relu(x)", fetch="y r")
    check(case, remove_identities, "x = input(2, 3)", values=awkward)


@pytest.mark.parametrize("text", DIFFERENT)
def test_node_that_computes_something_else_is_read(text: str) -> None:
    check(Case(f"{text}; r = relu(y)", fetch="y r"), remove_identities, "x = input(2, 3)", values=awkward)


@pytest.mark.parametrize("name", CHAINS)
def test_chain_is_followed_to_its_source(name: str) -> None:
    check(CHAINS[name], remove_identities, "x = input(2, 3)", values=awkward)


PARTS = "split({}, axis=0, sizes=(1, 3))"
FILL = "fill(value={}, shape=(), dtype='float{}')"
DRAW = "random_normal(shape=(2,), dtype='float32', seed=0, key='{}', mean=0.0, stddev=1.0)"
SEND, RECV = (f"send(x, key='k', destination='{THERE}')", f"recv(key='k', source='{THERE}', shape=(), dtype='float32')")
EQUAL_NODES = {
    "equal nodes, through and through": Case(
        f"a = exp(x); p, q = {PARTS.format('a')}; b = exp(x); r, s = {PARTS.format('b')}; total = concat(q, r, axis=0)",
        f"a = exp(x); p, q = {PARTS.format('a')}; total = concat(q, p, axis=0)",
        fetch="total s",
    ),
    "the order of inputs": Case("y = exp(x); a = sub(x, y); b = sub(y, x)"),
    "an attribute": Case("a = reduce_sum(x, axes=(0,), keepdims=True); b = reduce_sum(x, axes=(0,))"),
    "the sign of zero, and a dtype": Case(
        f"a = {FILL.format(0.0, 32)}; b = {FILL.format(-0.0, 32)}; c = {FILL.format(0.0, 64)}"
    ),
    "devices": Case(
        "a = exp(x, on='here'); b = exp(x, on='there'); c = exp(x, on='here')",
        "a = exp(x, on='here'); b = exp(x, on='there')",
        fetch="b c",
    ),
    "draws of one key": Case(
        f"a = {DRAW.format('w')}; b = {DRAW.format('w')}; c = {DRAW.format('v')}; y = add_n(a, b, c)",
        f"a = {DRAW.format('w')}; c = {DRAW.format('v')}; y = add_n(a, a, c)",
    ),
    "nodes that wait for a merged node wait for the first": Case(
        "first = exp(x); second = exp(x); late = neg(x, after='first second'); later = neg(x, after='second')",
        "first = exp(x); late = neg(x, after='first')",
        fetch="late later",
    ),
    "a node that waits": Case("a = exp(x); free = neg(x); bound = neg(x, after='a')"),
    "a partner of a merged node": Case(
        "first = exp(x); second = exp(x); partner = tanh(x, beside='second')",
        "first = exp(x); partner = tanh(x, beside='first')",
    ),
    "a target": Case("first = exp(x); second = exp(x)", targets="second"),
}


@pytest.mark.parametrize("name", EQUAL_NODES)
def test_equal_nodes_are_merged_as_the_table_says(name: str) -> None:
    check(EQUAL_NODES[name], merge_common_subexpressions, "x = input(4)")


def test_nodes_with_effects_are_never_merged() -> None:
    twice = "; ".join(f"x{k} = input(); v{k} = weights(); a{k} = assign(v{k}, x)" for k in range(2))
    case = Case(f"x = input(); {twice}; {SEND}; s = {SEND}; r = {RECV}; t = {RECV}; y = add(r, t)")
    check(case, merge_common_subexpressions, same_bits=False)
