"""Equal nodes are merged, and only equal ones."""

from __future__ import annotations

import pytest

from runner.engine.compile.passes.common_subexpressions import merge_common_subexpressions
from tests.engine.compile.passes.graph_text import THERE, Case, check

PARTS = "split({}, axis=0, sizes=(1, 3))"
FILL = "fill(value={}, shape=(), dtype='float{}')"
DRAW = "random_normal(shape=(2,), dtype='float32', seed=0, key='{}', mean=0.0, stddev=1.0)"
SEND, RECV = (
    f"send(x, key='k', destination='{THERE}')",
    f"recv(key='k', source='{THERE}', shape=(), dtype='float32')",
)
CASES = {
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


@pytest.mark.parametrize("name", CASES)
def test_equal_nodes_are_merged_as_the_table_says(name: str) -> None:
    check(CASES[name], merge_common_subexpressions, "x = input(4)")


def test_nodes_with_effects_are_never_merged() -> None:
    twice = "; ".join(f"x{k} = input(); v{k} = weights(); a{k} = assign(v{k}, x)" for k in range(2))
    case = Case(f"x = input(); {twice}; {SEND}; s = {SEND}; r = {RECV}; t = {RECV}; y = add(r, t)")
    check(case, merge_common_subexpressions, same_bits=False)
