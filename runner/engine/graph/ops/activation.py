"""Activation functions."""

from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.op import Builder, OpDef, Specs, expect, register
from runner.engine.graph.ops.common import elementwise_gradient, expect_dtype, expect_floats, input_flops, unary
from runner.engine.graph.ops.reduction import reduce_sum
from runner.engine.graph.tensor import FLOATS, Tensor, TensorSpec


def relu_gradient(graph: Builder, dy: Tensor, y: Tensor, *, name: str | None = None) -> Tensor:
    """Add a node that outputs dy where y > 0, and 0 elsewhere; y is the output of the ReLU and has dy's shape."""
    return graph.add("relu_gradient", [dy, y], name=name)[0]


def softmax_gradient(dy: Expr, y: Expr) -> Expr:
    """Return dx = y * (dy - sum(dy * y)) for y = softmax(x) over the last axis."""
    return y * (dy - apply(reduce_sum, dy * y, axes=[-1], keepdims=True))


def _log_softmax_gradient(dy: Expr, y: Expr, x: Expr) -> Expr:
    total = apply(reduce_sum, dy, axes=[-1], keepdims=True)
    return dy - y.exp() * total


def _infer_relu_gradient(dy: TensorSpec, y: TensorSpec) -> Specs:
    expect_floats([dy, y])
    expect(dy.shape == y.shape, "dy and y of one shape", f"{dy} and {y}")
    return [dy]


def _infer_last_axis(x: TensorSpec) -> Specs:
    expect_dtype(x, FLOATS)
    expect(x.rank > 0 and x.shape[-1] > 0, "a last axis that is not empty", x)
    return [x]


# relu_gradient is piecewise constant in y, so only dy has a gradient.
_RELU_GRADIENT = elementwise_gradient(lambda ddx, dx, dy, y: (apply(relu_gradient, ddx, y), None))

relu = unary(
    "relu",
    "Add max(x, 0), any shape; the derivative at 0 is 0 (Nair and Hinton 2010).",
    lambda dy, y, x: apply(relu_gradient, dy, y),
)
register(OpDef("relu_gradient", _infer_relu_gradient, _RELU_GRADIENT, arity=2))
sigmoid = unary(
    "sigmoid",
    "Add 1 / (1 + e ** -x), any shape, without overflow.",
    lambda dy, y, x: dy * (y * (1.0 - y)),
    flops=input_flops(4),
)
tanh = unary(
    "tanh",
    "Add the hyperbolic tangent of x, any shape.",
    lambda dy, y, x: dy * (y.scalar(1.0) - y * y),
    flops=input_flops(4),
)
softmax = unary(
    "softmax",
    "Add e ** x / sum(e ** x) over the last axis of x, without overflow.",
    lambda dy, y, x: softmax_gradient(dy, y),
    infer=_infer_last_axis,
    flops=input_flops(5),
)
log_softmax = unary(
    "log_softmax",
    "Add x - log(sum(e ** x)) over the last axis of x, without overflow.",
    _log_softmax_gradient,
    infer=_infer_last_axis,
    flops=input_flops(5),
)
