"""Removal of unneeded nodes, of nodes that return their input, and of duplicates that are equal bit for bit."""

import numpy as np
import pytest

from runner.engine.compile.passes.simplification import (
    merge_common_subexpressions,
    prune,
    remove_dead_code,
    remove_identities,
)
from runner.engine.graph import Graph, ShapeError, Tensor
from runner.engine.graph.verify import verify
from runner.kernels.registry import Registry
from tests.engine.compile.passes.graph_text import THERE, Array, Case, Text, check
from tests.engine.running import client, run_once, session

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
    f"o = neg(x); {ONE[:-1]}, after='o'); y = mul(x, n)",
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
    "a reshape of a reshape that waits for a node": Case(
        "o = neg(x); a = reshape(x, shape=(6,), after='o'); y = reshape(a, shape=(1, 6))",
    ),
    "a product with 1 that reads a variable before its assign": Case(
        *2 * (f"v = weights(2, 3); {ONE}; y = mul(v, n); w = assign(v, x); r = exp(y, after='w')",)
    ),
    "a chain of several ops": Case(
        f"a = stop_gradient(x); {ONE}; b = mul(a, n); y = identity(b); r = relu(y)",
        f"a = stop_gradient(x); {ONE}; b = mul(x, n); y = identity(x); r = relu(x)",
    ),
    "an assign keeps its variable; its readers read the assigned value": Case(
        "v = weights(2, 3); i = identity(v); new = neg(i); w = assign(v, new); r = exp(w)",
        "v = weights(2, 3); i = identity(v); new = neg(v); w = assign(v, new); r = exp(new)",
    ),
}


def awkward(graph: Graph) -> dict[Tensor, Array]:
    """Return zeros of both signs, infinities, NaN and a subnormal number for each placeholder and variable."""
    value = np.array([[0.0, -0.0, np.inf], [-np.inf, np.nan, 1e-45]], np.float32)
    return {node[0]: value for node in graph if node.op in ("placeholder", "variable")}


@pytest.mark.parametrize(("text", "read"), [*((text, "x") for text in SAME), *((text, "y") for text in DIFFERENT)])
def test_readers_skip_only_nodes_that_return_their_input(text: str, read: str) -> None:
    case = Case(f"{text}; r = relu(y)", f"{text}; r = relu({read})" if read == "x" else None, fetch="y r")
    check(case, remove_identities, "x = input(2, 3)", values=awkward)


@pytest.mark.parametrize("name", CHAINS)
def test_chain_of_identities_is_followed_to_its_source(name: str) -> None:
    check(CHAINS[name], remove_identities, "x = input(2, 3)", values=awkward)


PARTS = "split({}, axis=0, sizes=(1, 3))"
SCALAR = "fill(value={}, shape=(), dtype='float{}')"
DRAW = "random_normal(shape=(2,), dtype='float32', seed=0, key='{}', mean=0.0, stddev=1.0)"
SEND, RECV = (f"send(x, key='k', destination='{THERE}')", f"recv(key='k', source='{THERE}', shape=(), dtype='float32')")
EQUAL_NODES = {
    "equal nodes that read equal nodes": Case(
        f"a = exp(x); p, q = {PARTS.format('a')}; b = exp(x); r, s = {PARTS.format('b')}; total = concat(q, r, axis=0)",
        f"a = exp(x); p, q = {PARTS.format('a')}; total = concat(q, p, axis=0)",
        fetch="total s",
    ),
    "the order of inputs": Case("y = exp(x); a = sub(x, y); b = sub(y, x)"),
    "an attribute": Case("a = reduce_sum(x, axes=(0,), keepdims=True); b = reduce_sum(x, axes=(0,))"),
    "the sign of zero, and a dtype": Case(
        f"a = {SCALAR.format(0.0, 32)}; b = {SCALAR.format(-0.0, 32)}; c = {SCALAR.format(0.0, 64)}"
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
    "a node colocated with a merged node": Case(
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


HALVES = "low, high = split({}, axis=0, sizes=(2, 2))"
GRAPH = f"x = input(4); a = neg(x); {HALVES.format('a')}; b = add(low, high); c = exp(low); u = input(); v = square(u)"
"""x -> a -> (low, high) -> b; low -> c; and a separate chain u -> v."""


FED_X = "feed__x_0 = input(4); a = neg(feed__x_0)"
PRUNED = {
    "the nodes that a fetch needs, in the order of the graph": Case(
        GRAPH, f"{FED_X}; {HALVES.format('a')}; c = exp(low)", fetch="c", feed="x"
    ),
    "an inner tensor instead of its placeholder": Case(
        GRAPH, f"feed__a_0 = input(4); {HALVES.format('feed__a_0')}; b = add(low, high)", fetch="b", feed="a"
    ),
    "one output is fed, the other is computed": Case(
        GRAPH,
        f"feed__x_0 = input(4); feed__low_1 = input(2); a = neg(feed__x_0); {HALVES.format('a')}"
        "; b = add(low, feed__low_1)",
        fetch="b low",
        feed="x high",
    ),
    "all outputs that are read are fed": Case(
        GRAPH,
        "feed__low_0 = input(2); feed__low_1 = input(2); b = add(feed__low_0, feed__low_1)",
        fetch="b",
        feed="low high",
    ),
    "a fetch of a fed tensor": Case(
        GRAPH, f"feed__a_0 = input(4); {HALVES.format('feed__a_0')}", fetch="low a", feed="a"
    ),
    "device and layer of the replaced node": Case(
        "x = input(2); r = relu(x, on='there', layer='fc1')", "feed__r_0 = input(2, on='there', layer='fc1')", feed="r"
    ),
    "control inputs": Case(
        "w = weights(); f = exp(w); s = assign(w, f); late = tanh(w, after='s'); other = abs(w)",
        "w = weights(); f = exp(w); s = assign(w, f); late = tanh(w, after='s')",
        fetch="late",
    ),
    "a control edge from a fed placeholder": Case(
        "x = input(); y = input(); late = exp(y, after='x')",
        "feed__x_0 = input(); feed__y_0 = input(); late = exp(feed__y_0, after='feed/x_0')",
        fetch="late",
        feed="x y",
    ),
    "a control edge from a fed inner node runs the node": Case(
        "x = input(); y = input(); a = neg(x); late = exp(y, after='a')",
        "feed__x_0 = input(); feed__a_0 = input(); feed__y_0 = input(); a = neg(feed__x_0)"
        "; late = exp(feed__y_0, after='a')",
        fetch="late",
        feed="x a y",
    ),
    "a colocation does not make a node run": Case(
        f"{GRAPH}; n = neg(a, beside='v a')", f"{FED_X}; n = neg(a, beside='a')", fetch="n", feed="x"
    ),
    "an assign writes its variable even if the variable is fed": Case(
        "w = weights(2); d = add(w, w); s = assign(w, d)",
        "feed__w_0 = input(2); w = weights(2); d = add(feed__w_0, feed__w_0); s = assign(w, d)",
        feed="w",
        targets="s",
    ),
}


@pytest.mark.parametrize("name", PRUNED)
def test_graph_is_pruned_as_the_table_says(name: str) -> None:
    case = PRUNED[name]
    before = Text.parse(case.before)
    nodes, feeds = dict(before.graph.nodes), before.names(case.feed)
    pruned, moved = prune(before.graph, before.names(case.fetch), case.targets.split(), feeds)
    verify(pruned)
    assert list(pruned) == list(Text.parse(case.after or "").graph)
    assert moved == {tensor: Tensor(f"feed/{tensor.node}_{tensor.port}") for tensor in feeds}
    assert before.graph.nodes == nodes


def test_fed_values_replace_computed_values(registry: Registry) -> None:
    text = Text.parse(GRAPH, "float64")
    a, b, low, high = text.names("a b low high")
    fed = np.array([1.0, 2.0, 3.0, 4.0])
    found = run_once(text.graph, registry, [low, a, b], {a: fed, high: np.array([10.0, 20.0])})
    assert [value.tolist() for value in found] == [[1.0, 2.0], fed.tolist(), [11.0, 22.0]]


def test_fed_variable_is_read_as_fed_and_its_assign_writes_the_variable(registry: Registry) -> None:
    text = Text.parse("w = weights(2); d = add(w, w); s = assign(w, d)", "float64")
    (w,) = text.names("w")
    clients = [client("set", [w], targets=["s"], feeds=[w]), client("run", targets=["s"]), client("get", [w])]
    with session(text.graph, registry, *clients) as opened:
        assert opened.run("set", feeds={"w:0": np.array([1.0, 2.0])})["w:0"].tolist() == [1.0, 2.0]
        assert opened.run("run") == {}
        assert opened.run("get")["w:0"].tolist() == [4.0, 8.0]


@pytest.mark.parametrize(
    ("fetch", "targets", "feed", "message"),
    [
        (Tensor("b"), [], Tensor("u"), "placeholder .x. is needed but not fed; feed it or a tensor between it"),
        (Tensor("ghost"), [], Tensor("x"), "tensor ghost:0 is not in the graph"),
        (Tensor("b"), [], Tensor("low", 2), r"tensor low:2: node 'low' \(split\) has 2 outputs"),
        (Tensor("b"), ["ghost"], Tensor("x"), "target 'ghost' is not in the graph"),
    ],
)
def test_error_names_unknown_tensors_and_missing_feeds(
    fetch: Tensor, targets: list[str], feed: Tensor, message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        prune(Text.parse(GRAPH).graph, [fetch], targets, [feed])


EFFECTS = f"""awaited = sqrt(x); v = weights(2); new = square(x); assigned = assign(v, new, after='awaited')
    send(x, key='k', destination='{THERE}'); r = recv(key='l', source='{THERE}', shape=(), dtype='float32')"""


@pytest.mark.parametrize(
    ("case", "same_bits"),
    [
        (
            Case(
                f"unread = input(2); n = neg(x); fetched = exp(n); dead = tanh(fetched); target = abs(x)\n{EFFECTS}",
                f"n = neg(x); fetched = exp(n); target = abs(x)\n{EFFECTS}",
                fetch="fetched",
                targets="target",
            ),
            False,
        ),
        (Case("n = neg(x); y = exp(x, beside='n x')", "y = exp(x, beside='x')"), True),
    ],
    ids=["no root and no effect needs it", "colocation does not keep it"],
)
def test_dead_code_is_removed(case: Case, same_bits: bool) -> None:
    check(case, remove_dead_code, "x = input(2)", same_bits=same_bits)
