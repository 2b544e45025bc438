"""Attributes that builder functions compute, and outputs that ops of the executor declare."""

import numpy as np
import pytest

from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import OPS, ShapeError
from runner.engine.graph.tensor import Tensor, TensorSpec
from tests.oracles import evaluate


@pytest.fixture
def graph() -> Graph:
    return Graph()


def _x(graph: Graph, *shape: int, dtype: str = "float32") -> Tensor:
    return ops.placeholder(graph, shape, dtype, name="x")


def test_given_name_is_scoped(graph: Graph) -> None:
    x = _x(graph, 2)
    with graph.name_scope("fc1"):
        assert ops.relu(graph, x, name="activation") == Tensor("fc1/activation", 0)
        assert ops.relu(graph, x) == Tensor("fc1/relu", 0)


def test_reshape_infers_one_open_extent(graph: Graph) -> None:
    y = ops.reshape(graph, _x(graph, 2, 3, 4), (2, -1))
    assert graph.nodes[y.node].attributes["shape"] == (2, 12)


@pytest.mark.parametrize("shape", [(5, -1), (-1, -1), (0, -1)])
def test_open_extent_that_does_not_fit_is_refused(graph: Graph, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"op 'reshape': expected a shape for (the )?24 elements"):
        ops.reshape(graph, _x(graph, 2, 3, 4), shape)


def test_negative_axes_count_from_the_end(graph: Graph) -> None:
    x = _x(graph, 2, 3, 4)
    assert graph.spec(ops.reduce_sum(graph, x, [-1, 0])).shape == (3,)
    assert graph.spec(ops.argmax(graph, x, -2)) == TensorSpec((2, 4), "int64")
    assert graph.spec(ops.concat(graph, [x, x], -1)).shape == (2, 3, 8)
    assert [graph.spec(part).shape for part in ops.split(graph, x, -1, [1, 3])] == [(2, 3, 1), (2, 3, 3)]


def test_a_reduction_runs_over_all_axes_by_default(graph: Graph) -> None:
    assert graph.spec(ops.reduce_mean(graph, _x(graph, 2, 3))).shape == ()
    assert graph.spec(ops.reduce_mean(graph, _x(graph, 2, 3), keepdims=True)).shape == (1, 1)


@pytest.mark.parametrize("array", [np.arange(6, dtype=">i4").reshape(2, 3).T, np.array(True), np.zeros((0, 2), "f4")])
def test_a_constant_holds_its_array(graph: Graph, array: np.ndarray) -> None:
    (value,) = evaluate(graph, [ops.constant(graph, array)], {})
    np.testing.assert_array_equal(value, array)


def test_a_constant_of_a_foreign_dtype_is_refused(graph: Graph) -> None:
    with pytest.raises(ShapeError, match=r"op 'constant': expected an array of dtype float32, .*, came float16"):
        ops.constant(graph, np.zeros(2, np.float16))


def test_assign_is_colocated_with_its_variable(graph: Graph) -> None:
    w = ops.variable(graph, (2, 3), "float32", name="w")
    update = ops.assign(graph, w, _x(graph, 2, 3))
    assert graph.nodes[update.node].colocate_with == ("w",)
    assert graph.spec(update) == graph.spec(w)


def test_a_send_has_no_output_and_a_recv_declares_its_own(graph: Graph) -> None:
    name = ops.send(graph, _x(graph, 2), key="x:0", destination="/job:worker/task:1/device:cpu:0")
    assert graph.nodes[name].outputs == ()
    arrival = ops.recv(graph, key="x:0", source="/job:worker/task:0/device:cpu:0", shape=(2,), dtype="float32")
    assert graph.spec(arrival) == TensorSpec((2,), "float32")


def test_stateful_ops_and_ops_without_kernels() -> None:
    assert {op for op, d in OPS.items() if d.executed_by == "executor"} == {
        "placeholder",
        "variable",
        "assign",
        "send",
        "recv",
    }
    assert {op for op, d in OPS.items() if d.executed_by == "communicator"} == {"collective_sum"}
    assert {op for op, d in OPS.items() if d.stateful} == {"variable", "assign", "send", "recv", "collective_sum"}


def test_a_fixed_factor_scales(graph: Graph) -> None:
    (value,) = evaluate(graph, [ops.scale(graph, ops.fill(graph, 2.0, (2,), "float32"), 1.5)], {})
    assert value.tolist() == [3.0, 3.0]
