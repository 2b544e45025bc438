"""Equal nodes are merged, and only equal ones."""

from __future__ import annotations

import numpy as np
import pytest

from runner.engine.compile.passes.common_subexpressions import merge_common_subexpressions
from runner.engine.compile.passes.rewriting import Roots
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import OPS
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.verify import verify
from tests.engine.compile.passes.exactness import assert_unchanged, counts

HERE, THERE = "/job:worker/task:0/device:cpu:0", "/job:worker/task:1/device:cpu:0"


@pytest.fixture
def graph() -> Graph:
    graph = Graph()
    ops.placeholder(graph, (4,), "float64", name="x")
    return graph


X = Tensor("x")


def test_equal_nodes_are_merged_through_and_through(graph: Graph) -> None:
    first, second = (ops.split(graph, ops.exp(graph, X), 0, (1, 3)) for _ in range(2))
    total = ops.concat(graph, [first[1], second[0]], 0, name="total")
    fetches = [total, second[1]]
    result, moved = merge_common_subexpressions(graph, Roots.of(fetches))
    assert counts(result) == {"placeholder": 1, "exp": 1, "split": 1, "concat": 1}
    assert moved[second[1]] == first[1]
    assert result.nodes["total"].inputs == (first[1], first[0])
    assert_unchanged(graph, result, moved, fetches, {X: np.arange(4.0)})
    assert merge_common_subexpressions(result, Roots())[0].nodes == result.nodes


def test_order_of_inputs_attributes_and_signs_of_zeros_tell_nodes_apart(graph: Graph) -> None:
    y = ops.exp(graph, X)
    ops.sub(graph, X, y)
    ops.sub(graph, y, X)
    ops.reduce_sum(graph, X, keepdims=True)
    ops.reduce_sum(graph, X, keepdims=False)
    ops.fill(graph, 0.0, (), "float64")
    ops.fill(graph, -0.0, (), "float64")
    ops.fill(graph, 0.0, (), "float32")
    result, moved = merge_common_subexpressions(graph, Roots())
    assert moved == {}
    assert result.nodes == graph.nodes


def test_devices_are_not_crossed(graph: Graph) -> None:
    for device in (HERE, THERE, HERE):
        with graph.device(device):
            ops.exp(graph, X)
    result, moved = merge_common_subexpressions(graph, Roots())
    assert [node.device for node in result if node.op == "exp"] == [HERE, THERE]
    assert moved == {Tensor("exp_2"): Tensor("exp")}


def test_what_touches_the_world_is_never_merged() -> None:
    graph = Graph()
    for _ in range(2):
        x = ops.placeholder(graph, (), "float64")
        ops.assign(graph, ops.variable(graph, (), "float64"), x)
        ops.send(graph, x, key="k", destination=HERE)
        ops.recv(graph, key="k", source=HERE, shape=(), dtype="float64")
    result, _ = merge_common_subexpressions(graph, Roots())
    assert result.nodes == graph.nodes
    assert {node.op for node in graph} == {op for op, definition in OPS.items() if definition.executed_by == "executor"}


def test_draws_of_one_key_are_one_draw(graph: Graph) -> None:
    for key in ("a", "b", "a"):
        ops.random_normal(graph, (2,), "float64", seed=0, key=key)
    assert counts(merge_common_subexpressions(graph, Roots())[0])["random_normal"] == 2


def test_who_waits_for_a_merged_node_waits_for_the_first(graph: Graph) -> None:
    ops.exp(graph, X, name="first")
    ops.exp(graph, X, name="second")
    with graph.control_dependencies(["first", "second"]):
        ops.neg(graph, X, name="late")
    with graph.control_dependencies(["second"]):
        ops.neg(graph, X, name="later")
    result, _ = merge_common_subexpressions(graph, Roots())
    verify(result)
    assert "later" not in result, "it waits for the same and computes the same"
    assert result.nodes["late"].control_inputs == ("first",)


def test_what_waits_for_different_nodes_is_different(graph: Graph) -> None:
    ops.exp(graph, X, name="a")
    ops.neg(graph, X, name="free")
    with graph.control_dependencies(["a"]):
        ops.neg(graph, X, name="bound")
    assert "bound" in merge_common_subexpressions(graph, Roots())[0]


def test_a_partner_of_a_merged_node_stands_beside_the_first(graph: Graph) -> None:
    ops.exp(graph, X, name="first")
    ops.exp(graph, X, name="second")
    graph.add("tanh", [X], name="partner", colocate_with=["second"])
    result, _ = merge_common_subexpressions(graph, Roots())
    assert result.nodes["partner"].colocate_with == ("first",)


def test_a_target_stays_under_its_own_name(graph: Graph) -> None:
    ops.exp(graph, X, name="first")
    ops.exp(graph, X, name="second")
    result, _ = merge_common_subexpressions(graph, Roots.of([], ["second"]))
    assert "second" in result
