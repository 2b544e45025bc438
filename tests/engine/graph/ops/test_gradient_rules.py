"""Gradients that finite differences cannot check: ties, kinks, stops and dtypes."""

from collections.abc import Callable

import numpy as np
import pytest

from runner.engine.graph import ops
from runner.engine.graph.autodiff import gradients
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor, TensorSpec
from tests.oracles import evaluate
from tests.samples import Array

Unary = Callable[[Graph, Tensor], Tensor]
Binary = Callable[[Graph, Tensor, Tensor], Tensor]


def _placeholders(graph: Graph, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [ops.placeholder(graph, shape, "float64", name="x") for shape in shapes]


def _gradient_values(graph: Graph, y: Tensor, feeds: dict[Tensor, Array]) -> list[Array]:
    found = gradients(graph, [y], list(feeds))
    return evaluate(graph, [g for g in found if g is not None], feeds)


@pytest.mark.parametrize("extremum", [ops.maximum, ops.minimum])
def test_first_of_two_equal_operands_receives_the_gradient(extremum: Binary) -> None:
    graph = Graph()
    a, b = _placeholders(graph, (3,), (3,))
    equal_values = {a: np.ones(3), b: np.ones(3)}
    da, db = _gradient_values(graph, extremum(graph, a, b), equal_values)
    assert da.tolist() == [1, 1, 1]
    assert db.tolist() == [0, 0, 0]


def test_ties_of_a_reduced_maximum_share_the_gradient() -> None:
    graph = Graph()
    (x,) = _placeholders(graph, (2, 4))
    values = np.array([[1.0, 5.0, 5.0, 2.0], [3.0, 3.0, 3.0, 0.0]])
    (dx,) = _gradient_values(graph, ops.reduce_max(graph, x, [1]), {x: values})
    np.testing.assert_allclose(dx, [[0, 0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3, 0]])


@pytest.mark.parametrize("function", [ops.relu, ops.abs])
def test_derivative_at_a_kink_is_zero(function: Unary) -> None:
    graph = Graph()
    (x,) = _placeholders(graph, (1,))
    (dx,) = _gradient_values(graph, function(graph, x), {x: np.zeros(1)})
    assert dx.tolist() == [0]


def test_first_of_equal_values_in_a_window_receives_the_gradient() -> None:
    graph = Graph()
    (x,) = _placeholders(graph, (1, 1, 2, 2))
    y, _ = ops.max_pool(graph, x, window=(2, 2), strides=(2, 2))
    (dx,) = _gradient_values(graph, y, {x: np.ones((1, 1, 2, 2))})
    assert dx.ravel().tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("barrier", [ops.stop_gradient, ops.sign])
def test_no_gradient_flows_through(barrier: Unary) -> None:
    graph = Graph()
    (x,) = _placeholders(graph, (2,))
    assert gradients(graph, [barrier(graph, x)], [x]) == [None]


def test_stop_gradient_treats_its_input_as_a_constant() -> None:
    graph = Graph()
    (x,) = _placeholders(graph, (2,))
    y = ops.mul(graph, x, ops.stop_gradient(graph, x))
    (dx,) = _gradient_values(graph, y, {x: np.array([2.0, -3.0])})
    assert dx.tolist() == [2.0, -3.0]


def test_gradient_of_a_cast_has_the_dtype_of_its_input() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (2,), "float32")
    (dx,) = gradients(graph, [ops.cast(graph, x, "float64")], [x])
    assert dx is not None
    assert graph.spec(dx) == TensorSpec((2,), "float32")
    (value,) = evaluate(graph, [dx], {x: np.ones(2, np.float32)})
    assert value.tolist() == [1, 1]


def test_a_cast_to_integers_and_back_has_no_gradient() -> None:
    graph = Graph()
    (x,) = _placeholders(graph, (2,))
    y = ops.cast(graph, ops.cast(graph, x, "int32"), "float64")
    assert gradients(graph, [y], [x]) == [None]


def test_error_of_an_op_without_gradient_states_the_reason() -> None:
    graph = Graph()
    (x,) = _placeholders(graph, (2,))
    variable = ops.variable(graph, (2,), "float64", name="w")
    committed = ops.assign(graph, variable, x, name="update")
    with pytest.raises(ShapeError, match=r"no gradient through node 'update' \(op 'assign'\): it commits a value"):
        gradients(graph, [committed], [x])


def test_loss_gradient_is_probabilities_minus_truth() -> None:
    graph = Graph()
    (logits,) = _placeholders(graph, (2, 3))
    labels = ops.constant(graph, np.array([2, 0]))
    loss, probabilities = ops.softmax_cross_entropy(graph, logits, labels)
    (dlogits,) = gradients(graph, [loss], [logits])
    assert dlogits is not None
    values = np.array([[0.0, 1.0, 2.0], [5.0, 5.0, 5.0]])
    found, p = evaluate(graph, [dlogits, probabilities], {logits: values})
    np.testing.assert_allclose(found, p - np.eye(3)[[2, 0]])
