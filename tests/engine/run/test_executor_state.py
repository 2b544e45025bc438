"""Variables across steps: all readers see the value at the start of the step; their memory is not shared."""

import numpy as np
import pytest

from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor
from runner.errors import RunnerError
from runner.kernels.registry import Registry
from tests.engine.running import Array, Bench, Function, Replaced, client, session

X = Tensor("x")


def counter() -> Graph:
    """w <- w + 1, with readers of w before and after the assign in graph order."""
    graph = Graph()
    w = ops.variable(graph, (2,), "float64", name="w")
    ops.neg(graph, w, name="before")
    ops.assign(graph, w, ops.add(graph, w, ops.fill(graph, 1.0, (2,), "float64")), name="set")
    ops.neg(graph, ops.identity(graph, w), name="after")
    return graph


@pytest.mark.parametrize("also", [[], ["w"]])
def test_every_reader_sees_the_value_at_the_start_of_the_step(registry: Registry, also: list[str]) -> None:
    fetches = [Tensor(name) for name in ("before", "set", "after", "identity", *also)]
    bench = Bench(counter(), registry, fetches)
    bench.put("w", np.zeros(2))
    for step in range(3):
        before, new, after, *old = (value[0] for value in bench.run(step=step).values())
        assert (before, new, after, old) == (-step, step + 1, -step, [step] * (1 + len(also)))
    assert bench.value("w").tolist() == [3.0, 3.0]


def test_reader_that_depends_on_the_assign_is_refused(registry: Registry) -> None:
    graph = counter()
    with graph.control_dependencies(["set"]):
        ops.exp(graph, Tensor("w"), name="late")
    with pytest.raises(ShapeError, match=r"variable 'w': node 'late' reads its value .* has to run after node 'set'"):
        Bench(graph, registry)


def test_two_variables_can_be_swapped(registry: Registry) -> None:
    graph = Graph()
    a, b = (ops.variable(graph, (), "float64", name=name) for name in ("a", "b"))
    fetches = [ops.assign(graph, a, b, name="set_a"), ops.assign(graph, b, a, name="set_b")]
    bench = Bench(graph, registry, fetches)
    bench.put("a", np.array(1.0))
    bench.put("b", np.array(2.0))
    assert [float(value) for value in bench.run().values()] == [2.0, 1.0]
    assert (bench.value("a"), bench.value("b")) == (2.0, 1.0)


def test_reading_an_unassigned_variable_is_refused(registry: Registry) -> None:
    bench = Bench(counter(), registry)
    expected = "variable 'w' has no value yet: run the 'init' or the 'restore' client first"
    for step in range(2):
        with pytest.raises(RunnerError, match=expected):
            bench.run(step=step)


def assigned_from_feed() -> Graph:
    graph = Graph()
    w = ops.variable(graph, (2,), "float64", name="w")
    ops.assign(graph, w, ops.placeholder(graph, (2,), "float64", name="x"), name="set")
    return graph


def test_assign_needs_no_previous_value(registry: Registry) -> None:
    bench = Bench(assigned_from_feed(), registry)
    bench.run({X: np.array([1.0, 2.0])})
    assert bench.value("w").tolist() == [1.0, 2.0]
    bench.variables.require(frozenset({"w"}))


def test_step_with_wrong_feed_assigns_nothing(registry: Registry) -> None:
    bench = Bench(assigned_from_feed(), registry)
    with pytest.raises(RunnerError, match="feed x:0"):
        bench.run({X: np.ones(3)})
    with pytest.raises(RunnerError, match="variable 'w' has no value yet"):
        bench.variables.require(frozenset({"w"}))


def test_failed_first_step_marks_nothing_assigned(registry: Registry) -> None:
    graph = assigned_from_feed()
    y = ops.exp(graph, X)

    def picky(x: Array) -> Array:
        if x[0] < 0:
            raise FloatingPointError
        return np.exp(x)

    bench = Bench(graph, Replaced(registry, {"exp": picky}), [y])
    with pytest.raises(RunnerError, match="'exp'"):
        bench.run({X: -np.ones(2)})
    with pytest.raises(RunnerError, match="variable 'w' has no value yet"):
        bench.variables.require(frozenset({"w"}))
    bench.run({X: np.ones(2)})
    bench.variables.require(frozenset({"w"}))


def test_refused_step_works_once_the_variable_is_assigned(registry: Registry) -> None:
    graph = counter()
    ops.assign(graph, Tensor("w"), ops.fill(graph, 1.0, (2,), "float64"), name="init")
    clients = client("init", targets=["init"]), client("train", [Tensor("before")], targets=["set"])
    with session(graph, registry, *clients) as opened:
        for step in range(2):
            with pytest.raises(RunnerError, match="variable 'w' has no value yet"):
                opened.run("train", step=step)
        opened.run("init")
        assert [opened.run("train")["before:0"][0] for _ in range(2)] == [-1.0, -2.0]


def test_values_are_required_only_before_the_first_step(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(counter(), registry)
    calls: list[str] = []
    for name in ("require", "mark_assigned"):
        monkeypatch.setattr(bench.variables, name, _noting(calls, name, getattr(bench.variables, name)))
    with pytest.raises(RunnerError):
        bench.run()
    bench.put("w", np.zeros(2))
    calls.clear()
    for step in range(3):
        bench.run(step=step)
    assert calls == ["require", "mark_assigned"]


def _noting(calls: list[str], name: str, method: Function) -> Function:
    def noted(names: frozenset[str]) -> None:
        calls.append(name)
        method(names)

    return noted


def test_variable_does_not_share_memory_with_a_feed(registry: Registry) -> None:
    bench = Bench(assigned_from_feed(), registry)
    value = np.ones(2)
    bench.run({X: value})
    value[:] = 7.0
    assert bench.value("w").tolist() == [1.0, 1.0]


@pytest.mark.parametrize("fetch", ["w", "set"])
def test_variable_does_not_share_memory_with_a_fetch(registry: Registry, fetch: str) -> None:
    bench = Bench(assigned_from_feed(), registry, [Tensor(fetch)])
    bench.put("w", np.zeros(2))
    bench.run({X: np.ones(2)})[Tensor(fetch)][:] = 7.0
    assert bench.value("w").tolist() == [1.0, 1.0]
