"""Activation functions."""

from __future__ import annotations

from collections.abc import Sequence

from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.op import Attributes, Builder, OpDef, expect, register
from runner.engine.graph.ops.common import elementwise_gradient, expect_dtype, expect_floats, input_flops, like_input
from runner.engine.graph.ops.reduction import reduce_sum
from runner.engine.graph.tensor import FLOATS, Tensor, TensorSpec


def relu(graph: Builder, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add max(x, 0), any shape; the derivative at 0 is 0 (Nair and Hinton 2010)."""
    return graph.add("relu", [x], name=name)[0]


def relu_gradient(graph: Builder, dy: Tensor, y: Tensor, *, name: str | None = None) -> Tensor:
    """Add dy where y > 0 and 0 elsewhere; y is the output of the relu, of dy's shape."""
    return graph.add("relu_gradient", [dy, y], name=name)[0]


def sigmoid(graph: Builder, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add 1 / (1 + e ** -x), any shape, without overflow."""
    return graph.add("sigmoid", [x], name=name)[0]


def tanh(graph: Builder, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add the hyperbolic tangent of x, any shape."""
    return graph.add("tanh", [x], name=name)[0]


def softmax(graph: Builder, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add e ** x / sum(e ** x) over the last axis of x, without overflow."""
    return graph.add("softmax", [x], name=name)[0]


def log_softmax(graph: Builder, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add x - log(sum(e ** x)) over the last axis of x, without overflow."""
    return graph.add("log_softmax", [x], name=name)[0]


def softmax_gradient(dy: Expr, y: Expr) -> Expr:
    """Return dx = y * (dy - sum(dy * y)) for y = softmax(x) over the last axis."""
    return y * (dy - apply(reduce_sum, dy * y, axes=[-1], keepdims=True))


def _log_softmax_gradient(dy: Expr, y: Expr, x: Expr) -> Expr:
    total = apply(reduce_sum, dy, axes=[-1], keepdims=True)
    return dy - y.exp() * total


def _infer_relu_gradient(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    dy, y = specs
    expect_floats(specs)
    expect(dy.shape == y.shape, "dy and y of one shape", f"{dy} and {y}")
    return [dy]


def _infer_last_axis(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    (x,) = specs
    expect_dtype(x, FLOATS)
    expect(x.rank > 0 and x.shape[-1] > 0, "a last axis that is not empty", x)
    return [x]


_RELU = elementwise_gradient(lambda dy, y, x: apply(relu_gradient, dy, y))
# Piecewise constant in y, so only dy has a gradient.
_RELU_GRADIENT = elementwise_gradient(lambda ddx, dx, dy, y: (apply(relu_gradient, ddx, y), None))
_SIGMOID = elementwise_gradient(lambda dy, y, x: dy * (y * (1.0 - y)))
_TANH = elementwise_gradient(lambda dy, y, x: dy * (y.scalar(1.0) - y * y))
_SOFTMAX = elementwise_gradient(lambda dy, y, x: softmax_gradient(dy, y))
_LOG_SOFTMAX = elementwise_gradient(_log_softmax_gradient)

register(OpDef("relu", like_input(), _RELU, arity=1))
register(OpDef("relu_gradient", _infer_relu_gradient, _RELU_GRADIENT, arity=2))
register(OpDef("sigmoid", like_input(), _SIGMOID, arity=1, flops=input_flops(4)))
register(OpDef("tanh", like_input(), _TANH, arity=1, flops=input_flops(4)))
register(OpDef("softmax", _infer_last_axis, _SOFTMAX, arity=1, flops=input_flops(5)))
register(OpDef("log_softmax", _infer_last_axis, _LOG_SOFTMAX, arity=1, flops=input_flops(5)))
