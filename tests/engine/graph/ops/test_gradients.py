"""Gradient rules: comparison with central differences up to second order; ties, kinks and ``stop_gradient``."""

import numpy as np
import pytest

from runner.engine.graph import ops
from runner.engine.graph.autodiff import gradients
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import TensorSpec
from tests.engine.compile.passes.graph_text import Text
from tests.op_cases import all_cases
from tests.oracles import assert_gradients, evaluate
from tests.samples import Case

_DIFFERENTIABLE = [
    pytest.param(op, case, id=label)
    for op, case, label in all_cases()
    if case.orders > 0 and any(array.dtype == np.float64 for array in case.draw(seed=0))
]


@pytest.mark.parametrize(("op", "case"), _DIFFERENTIABLE)
def test_gradient_agrees_with_central_differences(op: str, case: Case) -> None:
    """Check the gradient of all float outputs together and, if there are several, of each output alone."""
    arrays = case.draw(seed=1)
    _, _, built = case.build(op)
    floats = [port for port, spec in enumerate(built.outputs) if spec.is_float]
    for ports in [floats] if len(floats) == 1 else [floats, *([port] for port in floats)]:
        graph, inputs, node = case.build(op)
        xs = [tensor for tensor in inputs if graph.spec(tensor).is_float]
        feeds = dict(zip(inputs, arrays, strict=True))
        assert_gradients(graph, [node[port] for port in ports], xs, feeds, np.random.default_rng(2), case.orders)


ONES = [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("text", "x", "expected"),
    [
        # At a tie, the first of two equal operands receives the gradient, as does the first maximum in a window.
        ("b = fill(value=1.0, shape=(3,), dtype='float64'); y = maximum(x, b)", ONES, [1, 1, 1]),
        ("b = fill(value=1.0, shape=(3,), dtype='float64'); y = maximum(b, x)", ONES, [0, 0, 0]),
        ("b = fill(value=1.0, shape=(3,), dtype='float64'); y = minimum(x, b)", ONES, [1, 1, 1]),
        ("b = fill(value=1.0, shape=(3,), dtype='float64'); y = minimum(b, x)", ONES, [0, 0, 0]),
        ("y, argmax = max_pool(x, window=(2, 2), strides=(2, 2))", [[[[1.0, 1.0], [1.0, 1.0]]]], [1, 0, 0, 0]),
        # Equal maxima of reduce_max share the gradient.
        ("y = reduce_max(x, axes=(1,))", [[1.0, 5.0, 5.0], [3.0, 3.0, 3.0]], [0, 0.5, 0.5, 1 / 3, 1 / 3, 1 / 3]),
        # The derivative at a kink is zero.
        ("y = relu(x)", [0.0], [0]),
        ("y = abs(x)", [0.0], [0]),
        # stop_gradient treats its input as a constant; a cast to integers and back has no gradient.
        ("s = stop_gradient(x); y = mul(x, s)", [2.0, -3.0], [2.0, -3.0]),
        ("y = stop_gradient(x)", [1.0], None),
        ("y = sign(x)", [1.0], None),
        ("i = cast(x, dtype='int32'); y = cast(i, dtype='float64')", [1.0], None),
    ],
)
def test_gradient_at_ties_kinks_and_stop_gradient(text: str, x: list[float], expected: list[float] | None) -> None:
    parsed = Text.parse(f"x = input{np.shape(x)}; {text}", "float64")
    (dx,) = gradients(parsed.graph, parsed.names("y"), parsed.names("x"))
    if expected is None:
        assert dx is None
    else:
        assert dx is not None
        (found,) = evaluate(parsed.graph, [dx], {parsed.tensors["x"]: np.array(x)})
        np.testing.assert_allclose(found.ravel(), expected)


def test_gradient_of_a_cast_has_the_dtype_of_its_input() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (2,), "float32")
    (dx,) = gradients(graph, [ops.cast(graph, x, "float64")], [x])
    assert dx is not None
    assert graph.spec(dx) == TensorSpec((2,), "float32")
    (value,) = evaluate(graph, [dx], {x: np.ones(2, np.float32)})
    assert value.tolist() == [1, 1]


def test_loss_gradient_is_probabilities_minus_truth() -> None:
    graph = Graph()
    logits = ops.placeholder(graph, (2, 3), "float64")
    loss, probabilities = ops.softmax_cross_entropy(graph, logits, ops.constant(graph, np.array([2, 0])))
    (dlogits,) = gradients(graph, [loss], [logits])
    assert dlogits is not None
    values = np.array([[0.0, 1.0, 2.0], [5.0, 5.0, 5.0]])
    found, p = evaluate(graph, [dlogits, probabilities], {logits: values})
    np.testing.assert_allclose(found, p - np.eye(3)[[2, 0]])
