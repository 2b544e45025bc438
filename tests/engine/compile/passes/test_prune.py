"""Partial execution: feeds and fetches on any edge, and no node that is not needed."""

from dataclasses import dataclass

import numpy as np
import pytest

from runner.engine.compile.passes.simplification import prune, remove_dead_code
from runner.engine.graph.op import ShapeError
from runner.engine.graph.serialize import verify
from runner.engine.graph.tensor import Tensor
from runner.kernels.registry import Registry
from tests.engine.compile.passes.graph_text import THERE, Case, Text, check
from tests.engine.running import client, run_once, session

HALVES = "low, high = split({}, axis=0, sizes=(2, 2))"
GRAPH = f"x = input(4); a = neg(x); {HALVES.format('a')}; b = add(low, high); c = exp(low); u = input(); v = square(u)"
"""x -> a -> (low, high) -> b; low -> c; a separate chain u -> v."""


@dataclass(frozen=True)
class Pruned:
    """The part of a graph that fetches and targets need if feeds are given."""

    before: str
    after: str
    fetch: str = ""
    feed: str = ""
    targets: str = ""


FED_X = "feed__x_0 = input(4); a = neg(feed__x_0)"
CASES = {
    "what a fetch needs, in the order of the graph": Pruned(
        GRAPH, f"{FED_X}; {HALVES.format('a')}; c = exp(low)", fetch="c", feed="x"
    ),
    "an inner tensor instead of its placeholder": Pruned(
        GRAPH, f"feed__a_0 = input(4); {HALVES.format('feed__a_0')}; b = add(low, high)", fetch="b", feed="a"
    ),
    "one port, while the other is computed": Pruned(
        GRAPH,
        f"feed__x_0 = input(4); feed__low_1 = input(2); a = neg(feed__x_0); {HALVES.format('a')}"
        "; b = add(low, feed__low_1)",
        fetch="b low",
        feed="x high",
    ),
    "all ports that are read": Pruned(
        GRAPH,
        "feed__low_0 = input(2); feed__low_1 = input(2); b = add(feed__low_0, feed__low_1)",
        fetch="b",
        feed="low high",
    ),
    "a fetch of a fed tensor": Pruned(
        GRAPH, f"feed__a_0 = input(4); {HALVES.format('feed__a_0')}", fetch="low a", feed="a"
    ),
    "device and layer of the replaced node": Pruned(
        "x = input(2); r = relu(x, on='there', layer='fc1')", "feed__r_0 = input(2, on='there', layer='fc1')", feed="r"
    ),
    "control inputs": Pruned(
        "w = weights(); f = exp(w); s = assign(w, f); late = tanh(w, after='s'); other = abs(w)",
        "w = weights(); f = exp(w); s = assign(w, f); late = tanh(w, after='s')",
        fetch="late",
    ),
    "a control edge from a fed placeholder": Pruned(
        "x = input(); y = input(); late = exp(y, after='x')",
        "feed__x_0 = input(); feed__y_0 = input(); late = exp(feed__y_0, after='feed/x_0')",
        fetch="late",
        feed="x y",
    ),
    "a control edge from a fed inner node runs the node": Pruned(
        "x = input(); y = input(); a = neg(x); late = exp(y, after='a')",
        "feed__x_0 = input(); feed__a_0 = input(); feed__y_0 = input(); a = neg(feed__x_0)"
        "; late = exp(feed__y_0, after='a')",
        fetch="late",
        feed="x a y",
    ),
    "colocation is no reason to run a node": Pruned(
        f"{GRAPH}; n = neg(a, beside='v a')", f"{FED_X}; n = neg(a, beside='a')", fetch="n", feed="x"
    ),
    "an assign names its variable, also if that is fed": Pruned(
        "w = weights(2); d = add(w, w); s = assign(w, d)",
        "feed__w_0 = input(2); w = weights(2); d = add(feed__w_0, feed__w_0); s = assign(w, d)",
        feed="w",
        targets="s",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_graph_is_pruned_as_the_table_says(name: str) -> None:
    case = CASES[name]
    before = Text.parse(case.before)
    nodes, feeds = dict(before.graph.nodes), before.names(case.feed)
    pruned, moved = prune(before.graph, before.names(case.fetch), case.targets.split(), feeds)
    verify(pruned)
    assert list(pruned) == list(Text.parse(case.after).graph)
    assert moved == {tensor: Tensor(f"feed/{tensor.node}_{tensor.port}") for tensor in feeds}
    assert before.graph.nodes == nodes


def test_fed_and_fetched_tensors_have_their_values(registry: Registry) -> None:
    text = Text.parse(GRAPH, "float64")
    a, b, low, high = text.names("a b low high")
    fed = np.array([1.0, 2.0, 3.0, 4.0])
    found = run_once(text.graph, registry, [low, a, b], {a: fed, high: np.array([10.0, 20.0])})
    assert [value.tolist() for value in found] == [[1.0, 2.0], fed.tolist(), [11.0, 22.0]]


def test_a_fed_variable_is_read_as_fed_and_its_assign_writes_the_variable(registry: Registry) -> None:
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
def test_unknown_tensors_and_missing_feeds_are_named(
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
