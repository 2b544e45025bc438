"""Small updates are at the end of a step, in their order, and every node runs after those that it needs."""

import numpy as np

from runner.engine.compile.compile import small_updates_last
from runner.engine.compile.passes.order_writes import order_writes
from runner.engine.compile.passes.rewriting import needed_by
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.kernels.registry import Registry
from tests.engine.running import Bench

HALF = {"program": "mul 0 #0.5", "outputs": (1,)}


def training(sizes: dict[str, int]) -> Graph:
    """A chain of products with one variable each, which is updated directly after its read."""
    graph = Graph()
    value = ops.placeholder(graph, (), "float32", name="value")
    for name, size in sizes.items():
        variable = ops.variable(graph, (size,), "float32", name=name)
        value = ops.reduce_sum(graph, ops.mul(graph, variable, value, name=f"{name}_product"), name=f"{name}_sum")
        updated = graph.add("elementwise", [variable], HALF, name=f"{name}_update")[0]
        ops.assign(graph, variable, updated, name=f"{name}_assign")
    ops.identity(graph, value, name="result")
    return graph


def names(graph: Graph) -> list[str]:
    return [node.name for node in graph]


def test_small_updates_are_last_and_keep_their_order() -> None:
    graph = order_writes(training({"a": 3, "b": 4000, "c": 5}))
    late = small_updates_last(graph, small_bytes=100)
    assert names(late)[-4:] == ["a_update", "a_assign", "c_update", "c_assign"]
    assert [name for name in names(graph) if name not in names(late)[-4:]] == names(late)[:-4]


def test_every_node_runs_after_those_that_it_needs() -> None:
    late = small_updates_last(order_writes(training({"a": 3, "b": 4000, "c": 5})), small_bytes=100)
    done: set[str] = set()
    for node in late:
        assert set(needed_by(node)) <= done
        done.add(node.name)


def test_update_that_other_nodes_need_does_not_move() -> None:
    graph = training({"a": 3})
    ops.reduce_sum(graph, graph.nodes["a_assign"][0], name="of_the_new_value")
    assert names(small_updates_last(graph)) == names(graph)


def test_node_that_computes_no_variable_does_not_move() -> None:
    graph = Graph()
    value = ops.placeholder(graph, (3,), "float32", name="value")
    graph.add("elementwise", [value], HALF, name="fetched")
    ops.identity(graph, value, name="other")
    assert names(small_updates_last(graph)) == names(graph)


def test_step_computes_the_same_values(registry: Registry) -> None:
    feeds = {ops_value: np.float32(1.5) for ops_value in [training({"a": 3}).nodes["value"][0]]}
    found = []
    for late in (False, True):
        graph = order_writes(training({"a": 3, "b": 40, "c": 5}))
        bench = Bench(small_updates_last(graph, 100) if late else graph, registry, [graph.nodes["result"][0]])
        for name, size in {"a": 3, "b": 40, "c": 5}.items():
            bench.put(name, np.arange(1, size + 1, dtype=np.float32))
        results = [bench.run(feeds)[graph.nodes["result"][0]] for _ in range(3)]
        found.append([*results, *(bench.value(name) for name in "abc")])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
