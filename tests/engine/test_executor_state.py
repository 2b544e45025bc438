"""Variables across steps: everyone reads the value at the start of the step, and nobody else holds their memory."""

from __future__ import annotations

import numpy as np
import pytest

from runner.engine import ops
from runner.engine.executor import VariableStore
from runner.engine.graph import Graph
from runner.engine.tensor import Tensor
from runner.errors import RunnerError
from runner.kernels.registry import Registry
from tests.engine.running import Bench

X = Tensor("x")


def counter() -> Graph:
    """w <- w + 1, with readers of w before and after the assign in graph order."""
    graph = Graph()
    w = ops.variable(graph, (2,), "float64", name="w")
    ops.neg(graph, w, name="before")
    ops.assign(graph, w, ops.add(graph, w, ops.fill(graph, 1.0, (2,), "float64")), name="set")
    with graph.control_dependencies(["set"]):
        ops.neg(graph, w, name="after")
    return graph


def test_every_reader_sees_the_value_at_the_start_of_the_step(registry: Registry) -> None:
    fetches = [Tensor(name) for name in ("w", "before", "set", "after")]
    bench = Bench(counter(), registry, fetches)
    bench.variables.commit("w", np.zeros(2))
    for step in range(3):
        w, before, new, after = (value[0] for value in bench.run(step=step).values())
        assert (w, before, new, after) == (step, -step, step + 1, -step)
    assert bench.variables.read("w")[0] == 3.0


def test_a_swap_of_two_variables_needs_no_third(registry: Registry) -> None:
    graph = Graph()
    a, b = (ops.variable(graph, (), "float64", name=name) for name in ("a", "b"))
    ops.assign(graph, a, b)
    ops.assign(graph, b, a)
    bench = Bench(graph, registry)
    bench.variables.commit("a", np.array(1.0))
    bench.variables.commit("b", np.array(2.0))
    bench.run()
    assert (bench.variables.read("a"), bench.variables.read("b")) == (2.0, 1.0)


def test_a_variable_read_before_it_has_a_value_says_what_to_run(registry: Registry) -> None:
    expected = "variable 'w' has no value yet: run the 'init' or the 'restore' client first"
    with pytest.raises(RunnerError, match=expected):
        Bench(counter(), registry).run()


def assigned_from_feed() -> Graph:
    graph = Graph()
    w = ops.variable(graph, (2,), "float64", name="w")
    ops.assign(graph, w, ops.placeholder(graph, (2,), "float64", name="x"))
    return graph


def test_a_variable_does_not_share_memory_with_the_caller_s_feed(registry: Registry) -> None:
    bench = Bench(assigned_from_feed(), registry)
    value = np.ones(2)
    bench.run({X: value})
    value[:] = 7.0
    assert bench.variables.read("w").tolist() == [1.0, 1.0]


def test_a_fetched_variable_cannot_be_written(registry: Registry) -> None:
    bench = Bench(assigned_from_feed(), registry, [Tensor("w")])

    bench.variables.commit("w", np.zeros(2))
    fetched = bench.run({X: np.ones(2)})[Tensor("w")]
    with pytest.raises(ValueError, match="read-only"):
        fetched[:] = 7.0


def test_the_store_knows_how_much_it_holds() -> None:
    store = VariableStore()
    store.commit("a", np.zeros(3))
    store.commit("b", np.zeros(4, np.float32))
    store.commit("a", np.zeros(5))
    assert store.nbytes == 5 * 8 + 4 * 4
