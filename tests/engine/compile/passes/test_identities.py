"""Nodes that compute their input are not read; nodes that differ from it in one bit are."""

from __future__ import annotations

import numpy as np
import pytest

from runner.engine.compile.passes.identities import remove_identities
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor
from tests.engine.compile.passes.exactness import Array
from tests.engine.compile.passes.graph_text import Case, check

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
