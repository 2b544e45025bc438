"""A step on one device: feeds, calls, variables and errors."""

import gc
import weakref
from contextlib import nullcontext

import numpy as np
import pytest

from runner.engine.graph import Graph, Tensor, TensorSpec, ops
from runner.engine.run.executor import fed_array
from runner.errors import ClusterError, NumericError, ResourceError, RunnerError
from runner.kernels.registry import Registry
from tests.engine.running import CPU_0, CPU_1, Array, Bench, Function, Replaced

X = Tensor("x")


@pytest.fixture
def graph() -> Graph:
    """Return a graph that computes n = -x and e = exp(n)."""
    graph = Graph()
    x = ops.placeholder(graph, (2,), "float64", name="x")
    ops.exp(graph, ops.neg(graph, x, name="n"), name="e")
    return graph


ONES = np.ones(2)


@pytest.mark.parametrize(
    ("value", "came"),
    [
        (np.ones(3), r"float64\[3\]"),
        (np.ones((2, 1)), r"float64\[2, 1\]"),
        (np.ones(2, np.float32), r"float32\[2\]"),
        (np.ones(2, np.int64), r"int64\[2\]"),
        ([1, 2], r"int64\[2\]"),
        (1.0, r"float64\[\]"),
    ],
)
def test_feed_of_wrong_shape_or_dtype_is_named(graph: Graph, registry: Registry, value: Array, came: str) -> None:
    with pytest.raises(RunnerError, match=rf"feed x:0: got {came}, expected float64\[2\]"):
        Bench(graph, registry).run({X: value})


def test_fed_value_is_brought_into_the_byte_order_of_this_machine() -> None:
    # GPUs and other processes receive the bytes of a value without its byte order.
    found = fed_array(X, np.array([1.0, 2.0], ">f8"), TensorSpec((2,), "float64"))
    assert found.dtype.isnative
    assert found.tolist() == [1.0, 2.0]


def failing(error: Exception) -> Function:
    def broken(value: Array) -> Array:
        raise error

    return broken


NO_BITS, NO_PAGES = FloatingPointError("no bits"), MemoryError("no pages left")


@pytest.mark.parametrize(
    ("ops", "error", "kind", "text"),
    [
        (["exp"], NO_BITS, RunnerError, r"node 'e' \(op 'exp'\) on {} failed in step 12: FloatingPointError: no bits"),
        (["exp"], NO_PAGES, ResourceError, "node 'e' .* failed in step 12: MemoryError: no pages left"),
        (["neg", "exp"], NO_BITS, RunnerError, "node 'n' "),
    ],
    ids=["error", "no memory", "first node"],
)
def test_kernel_error_names_node_op_device_and_step(
    graph: Graph, registry: Registry, ops: list[str], error: Exception, kind: type[RunnerError], text: str
) -> None:
    bench = Bench(graph, Replaced(registry, dict.fromkeys(ops, failing(error))), [Tensor("e")])
    with pytest.raises(kind, match=text.format(CPU_0)) as caught:
        bench.run({X: ONES}, step=12)
    assert caught.value.__cause__ is error


def test_check_finite_names_the_first_node(graph: Graph, registry: Registry) -> None:
    kernels = Replaced(registry, {"neg": lambda x: np.array([np.nan, 1.0]), "exp": lambda x: x})
    expected = r"node 'n' \(op 'neg'\), output 0: 1 of 2 values are not finite in step 5; no earlier node"
    with pytest.raises(NumericError, match=expected):
        Bench(graph, kernels, [Tensor("e")], check_finite=True).run({X: ONES}, step=5)
    fetched = Bench(graph, kernels, [Tensor("e")]).run({X: ONES})
    assert np.isnan(fetched[Tensor("e")][0])
    fetched = Bench(graph, registry, [Tensor("e")]).run({X: np.array([-1e6, 0.0])})
    assert fetched[Tensor("e")].tolist() == [np.inf, 1.0]


def test_check_finite_checks_every_floating_output(registry: Registry) -> None:
    graph = Graph()
    x = ops.placeholder(graph, (3,), "float64", name="x")
    ops.split(graph, x, 0, (1, 2), name="parts")
    ops.cast(graph, ops.placeholder(graph, (1,), "int64", name="i"), "bool")
    feeds = {X: np.array([1.0, 2.0, np.inf]), Tensor("i"): np.array([2**62])}
    with pytest.raises(NumericError, match=r"node 'parts' \(op 'split'\), output 1: 1 of 2 values"):
        Bench(graph, registry, check_finite=True).run(feeds)
    finite = {**feeds, X: np.arange(3.0)}
    Bench(graph, registry, check_finite=True).run(finite)


def test_variable_keeps_its_value_if_the_new_value_is_refused(registry: Registry) -> None:
    graph = Graph()
    x = ops.placeholder(graph, (2,), "float64", name="x")
    w, v = (ops.variable(graph, (2,), "float64", name=name) for name in "wv")
    ops.assign(graph, w, ops.add(graph, w, x, name="sum"))
    ops.assign(graph, v, ops.mul(graph, v, x, name="product"))
    for checked, left in ((True, [1.0, 1.0]), (False, [np.inf, 2.0])):
        bench = Bench(graph, registry, check_finite=checked)
        assert {place.variable for place in bench.plan.places} > {"w", "v"}, "both are updated in place"
        bench.put("w", ONES)
        bench.put("v", 3 * ONES)
        with pytest.raises(NumericError, match="node 'sum'") if checked else nullcontext():
            bench.run({X: np.array([np.inf, 1.0])})
        assert bench.value("w").tolist() == left
        bench.put("w", ONES)
        bench.put("v", 3 * ONES)
        bench.run({X: ONES})
        assert [bench.value(name).tolist() for name in "wv"] == [[2.0, 2.0], [3.0, 3.0]]


def test_fetched_arrays_are_copies(graph: Graph, registry: Registry) -> None:
    fetches = [Tensor("e"), ops.identity(graph, Tensor("e"), name="seen"), X]
    bench = Bench(graph, registry, fetches)
    first = bench.run({X: ONES})
    for array in first.values():
        array[:] = 7.0
    small = [float(np.exp(-1.0))] * 2
    assert [array.tolist() for array in bench.run({X: ONES}).values()] == [small, small, [1.0, 1.0]]
    assert [array.tolist() for array in first.values()] == [[7.0, 7.0]] * 3


@pytest.mark.parametrize("missing", [False, True])
def test_executor_does_not_keep_feeds(registry: Registry, missing: bool) -> None:
    graph = Graph()
    a, b = (ops.placeholder(graph, (2,), "float64", name=name) for name in "ab")
    bench = Bench(graph, registry, [a])
    value = np.ones(2)
    watched = weakref.ref(value)
    if missing:
        with pytest.raises(RunnerError, match=f"^step on {CPU_0}: no value was fed for b:0$"):
            bench.run({a: value})
    else:
        bench.run({a: value, b: value})
    del value
    gc.collect()
    assert watched() is None


def test_kernel_cannot_write_into_a_feed(graph: Graph, registry: Registry) -> None:
    def greedy(x: Array) -> Array:
        x *= -1.0
        return x

    value = np.ones(2)
    with pytest.raises(RunnerError, match=r"node 'n' .* ValueError: .*read-only"):
        Bench(graph, Replaced(registry, {"neg": greedy})).run({X: value})
    assert value.tolist() == [1.0, 1.0]
    assert value.flags.writeable


def test_plan_is_bound_again_after_the_arena_has_grown(graph: Graph, registry: Registry) -> None:
    bench = Bench(graph, registry, [Tensor("e")])
    larger = Graph()
    y = ops.placeholder(larger, (1000,), "float64", name="y")
    other = Bench(larger, registry, [ops.neg(larger, y, name="minus")], arena=bench.arena)
    for step in range(2):
        np.testing.assert_array_equal(bench.run({X: ONES + step})[Tensor("e")], np.exp(-ONES - step))
        other.run({y: np.full(1000, np.nan)})
    assert bench.arena.at_least(0, bench.executor).nbytes == other.plan.arena_bytes


def test_old_memory_is_freed_when_the_arena_grows(graph: Graph, registry: Registry) -> None:
    bench = Bench(graph, registry, [Tensor("e")])
    small = weakref.ref(bench.arena.at_least(0, bench.executor).base)
    bench.arena.at_least(10_000, bench.executor)
    gc.collect()
    assert small() is None
    assert bench.run({X: ONES})[Tensor("e")].tolist() == np.exp(-ONES).tolist()


def test_send_and_receive_match_by_step_and_key(registry: Registry) -> None:
    graph = Graph()
    x = ops.recv(graph, key="in", source=CPU_1, shape=(2,), dtype="float64", name="x")
    ops.send(graph, ops.neg(graph, x), key="out", destination=CPU_1)
    bench = Bench(graph, registry)
    for step in (4, 5):
        bench.rendezvous.send(step, "in", CPU_0, ONES * step)
    bench.run(step=5)
    assert sorted(bench.rendezvous._values) == [(4, "in"), (5, "out")]
    assert bench.rendezvous.receive(5, "out", CPU_0).tolist() == [-5.0, -5.0]


def test_received_value_is_checked_against_its_spec(registry: Registry) -> None:
    graph = Graph()
    ops.recv(graph, key="in", source=CPU_1, shape=(2,), dtype="float64", name="r")
    bench = Bench(graph, registry)
    with pytest.raises(ClusterError, match=f"'in' of step 0 did not arrive from {CPU_1}"):
        bench.run()
    with pytest.raises(ValueError, match="'in': memory of 16 bytes, expected 24"):
        bench.rendezvous.send(0, "in", CPU_0, np.ones(3))
    bench.rendezvous.send(0, "in", CPU_0, np.ones(4, np.float32))
    with pytest.raises(RunnerError, match=r"node 'r' .* got float32\[4\], expected float64\[2\]"):
        bench.run()
