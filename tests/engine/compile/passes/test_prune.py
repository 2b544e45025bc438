"""Partial execution: feeds and fetches on any edge, and nothing run that is not needed."""

from __future__ import annotations

import numpy as np
import pytest

from runner.engine.compile.passes.prune import prune, remove_dead_code
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import LayerStamp
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.verify import verify
from runner.kernels.registry import Registry
from tests.engine.compile.passes.graph_text import THERE, Case, check
from tests.engine.running import Replaced, client, run_once, session


@pytest.fixture
def graph() -> Graph:
    """x -> a -> (low, high) -> b; low -> c; a separate chain u -> v."""
    graph = Graph()
    x = ops.placeholder(graph, (4,), "float64", name="x")
    a = ops.neg(graph, x, name="a")
    low, high = ops.split(graph, a, 0, (2, 2), name="halves")
    ops.add(graph, low, high, name="b")
    ops.exp(graph, low, name="c")
    u = ops.placeholder(graph, (), "float64", name="u")
    ops.square(graph, u, name="v")
    return graph


X = np.array([1.0, 2.0, 3.0, 4.0])


def test_only_what_a_fetch_needs_is_kept_in_graph_order(graph: Graph) -> None:
    pruned, moved = prune(graph, [Tensor("c")], feeds=[Tensor("x")])
    assert list(pruned.nodes) == ["feed/x_0", "a", "halves", "c"]
    assert moved == {Tensor("x"): Tensor("feed/x_0")}
    verify(pruned)


def test_dropped_nodes_are_not_executed(graph: Graph, registry: Registry) -> None:
    def never(*_: object) -> object:
        raise AssertionError("this node is not needed")

    kernels = Replaced(registry, {"neg": never, "exp": never, "square": never})
    (total,) = run_once(graph, kernels, [Tensor("b")], {Tensor("a"): X})
    assert total.tolist() == [4.0, 6.0]


def test_an_inner_tensor_can_be_fed_instead_of_its_placeholder(graph: Graph, registry: Registry) -> None:
    (total,) = run_once(graph, registry, [Tensor("b")], {Tensor("a"): X})
    assert total.tolist() == [4.0, 6.0]


def test_one_port_can_be_fed_while_the_other_is_computed(graph: Graph, registry: Registry) -> None:
    feeds = {Tensor("x"): X, Tensor("halves", 1): np.array([10.0, 20.0])}
    total, low = run_once(graph, registry, [Tensor("b"), Tensor("halves", 0)], feeds)
    assert total.tolist() == [9.0, 18.0]
    assert low.tolist() == [-1.0, -2.0]


def test_when_all_ports_a_reader_wants_are_fed_their_node_is_dropped(graph: Graph) -> None:
    pruned, _ = prune(graph, [Tensor("b")], feeds=[Tensor("halves", 0), Tensor("halves", 1)])
    assert list(pruned.nodes) == ["feed/halves_0", "feed/halves_1", "b"]


def test_any_tensor_can_be_fetched_also_a_fed_one(graph: Graph, registry: Registry) -> None:
    low, fed = run_once(graph, registry, [Tensor("halves"), Tensor("a")], {Tensor("a"): X})
    assert low.tolist() == [1.0, 2.0]
    assert fed.tolist() == X.tolist()


def test_a_feed_takes_over_device_and_layer_of_the_node_it_replaces() -> None:
    graph = Graph()
    with graph.device("/task:1"), graph.layer(LayerStamp("fc1", "dense")):
        ops.relu(graph, ops.placeholder(graph, (2,), "float64", name="x"), name="r")
    pruned, _ = prune(graph, [], feeds=[Tensor("r")])
    assert pruned.nodes["feed/r_0"].device == "/task:1"
    assert pruned.nodes["feed/r_0"].layer == LayerStamp("fc1", "dense")


def test_a_needed_placeholder_that_is_not_fed_is_named(graph: Graph) -> None:
    expected = "placeholder 'x' is needed but not fed; feed it or a tensor between it and the fetches"
    with pytest.raises(ShapeError, match=expected):
        prune(graph, [Tensor("b")], feeds=[Tensor("u")])


def test_unknown_fetches_feeds_and_targets_are_named(graph: Graph) -> None:
    with pytest.raises(ShapeError, match="tensor ghost:0 is not in the graph"):
        prune(graph, [Tensor("ghost")])
    with pytest.raises(ShapeError, match=r"tensor halves:2: node 'halves' \(split\) has 2 outputs"):
        prune(graph, [Tensor("b")], feeds=[Tensor("halves", 2)])
    with pytest.raises(ShapeError, match="target 'ghost' is not in the graph"):
        prune(graph, [], ["ghost"])


def test_a_target_is_run_without_being_fetched(registry: Registry) -> None:
    graph = Graph()
    w = ops.variable(graph, (2,), "float64", name="w")
    ops.assign(graph, w, ops.fill(graph, 3.0, (2,), "float64"), name="set")
    clients = [client("set", targets=["set"]), client("get", [w])]
    with session(graph, registry, *clients) as opened:
        assert opened.run("set") == {}
        assert opened.run("get")["w:0"].tolist() == [3.0, 3.0]


def test_control_inputs_are_kept_and_run(registry: Registry) -> None:
    graph = Graph()
    w = ops.variable(graph, (), "float64", name="w")
    count = ops.assign(graph, w, ops.fill(graph, 5.0, (), "float64"), name="set")
    with graph.control_dependencies([count.node]):
        late = ops.fill(graph, 1.0, (), "float64", name="late")
    pruned, _ = prune(graph, [late])
    assert pruned.nodes["late"].control_inputs == ("set",)
    with session(graph, registry, client("late", [late]), client("get", [w])) as opened:
        opened.run("late")
        assert opened.run("get")["w:0"] == 5.0


def test_a_control_edge_from_a_fed_placeholder_leads_from_the_feed(registry: Registry) -> None:
    graph = Graph()
    x = ops.placeholder(graph, (), "float64", name="x")
    with graph.control_dependencies(["x"]):
        late = ops.fill(graph, 1.0, (), "float64", name="late")
    pruned, _ = prune(graph, [late], feeds=[x])
    verify(pruned)
    assert pruned.nodes["late"].control_inputs == ("feed/x_0",)
    assert run_once(graph, registry, [late], {x: np.zeros(())})[0] == 1.0


def test_a_control_edge_from_a_fed_inner_node_still_runs_the_node(graph: Graph) -> None:
    with graph.control_dependencies(["a"]):
        late = ops.fill(graph, 1.0, (), "float64", name="late")
    pruned, _ = prune(graph, [late], feeds=[Tensor("x"), Tensor("a")])
    assert list(pruned.nodes) == ["feed/x_0", "feed/a_0", "a", "late"]


def test_colocation_is_no_reason_to_run_a_node(graph: Graph) -> None:
    graph.add("neg", [Tensor("a")], name="beside", colocate_with=["v", "a"])
    pruned, _ = prune(graph, [Tensor("beside")], feeds=[Tensor("x")])
    assert pruned.nodes["beside"].colocate_with == ("a",)
    verify(pruned)


def test_a_fed_variable_is_read_as_fed_and_assigned_for_real(registry: Registry) -> None:
    graph = Graph()
    w = ops.variable(graph, (2,), "float64", name="w")
    doubled = ops.add(graph, w, w, name="doubled")
    ops.assign(graph, w, doubled, name="set")
    pruned, _ = prune(graph, [], ["set"], [w])
    verify(pruned)
    clients = [client("set", [w], targets=["set"], feeds=[w]), client("get", [w])]
    with session(graph, registry, *clients) as opened:
        assert opened.run("set", feeds={"w:0": np.array([1.0, 2.0])})["w:0"].tolist() == [1.0, 2.0]
        assert opened.run("get")["w:0"].tolist() == [2.0, 4.0]


def test_pruning_leaves_the_graph_as_it_was(graph: Graph) -> None:
    before = dict(graph.nodes)
    prune(graph, [Tensor("b")], feeds=[Tensor("a")])
    assert graph.nodes == before


def test_dead_code_is_all_that_no_root_and_no_effect_needs() -> None:
    case = Case(
        f"""x = input(2); unread = input(2); n = neg(x); fetched = exp(n); dead = tanh(fetched); target = abs(x)
        awaited = sqrt(x); variable = weights(2); new = square(x); assigned = assign(variable, new, after='awaited')
        send(x, key='k', destination='{THERE}')
        r = recv(key='l', source='{THERE}', shape=(), dtype='float32')""",
        f"""x = input(2); n = neg(x); fetched = exp(n); target = abs(x)
        awaited = sqrt(x); variable = weights(2); new = square(x); assigned = assign(variable, new, after='awaited')
        send(x, key='k', destination='{THERE}')
        r = recv(key='l', source='{THERE}', shape=(), dtype='float32')""",
        fetch="fetched",
        targets="target",
    )
    check(case, remove_dead_code, same_bits=False)


def test_colocation_does_not_keep_dead_code() -> None:
    case = Case("x = input(2); n = neg(x); y = exp(x, beside='n x')", "x = input(2); y = exp(x, beside='x')")
    check(case, remove_dead_code)
