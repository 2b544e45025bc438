"""Batch normalization with the ReLU that follows it, forward and backward.

* ``batch_norm_relu``: (y, mean, variance, mask) of x, gamma and beta: batch_norm with y = max(y, 0), and mask = y > 0,
  bool, of x's shape.
* ``batch_norm_relu_gradient``: (dx, dgamma, dbeta) of x, gamma, mean, variance, mask and dy, the gradient of that y:
  batch_norm_gradient of dy where mask.
"""

from collections.abc import Sequence

from runner.engine.graph.expression import Expr
from runner.engine.graph.op import Attributes, Builder, OpDef, expect, register
from runner.engine.graph.ops.activation import relu
from runner.engine.graph.ops.batch_normalization import batch_norm, batch_norm_gradient, expect_channels
from runner.engine.graph.ops.common import MADE_BY_PASSES, expect_same_dtype, input_flops
from runner.engine.graph.ops.comparison import greater, select
from runner.engine.graph.tensor import Tensor, TensorSpec


def _infer(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    x, gamma, beta = specs
    expect_channels(x, [gamma, beta])
    return [x, gamma, gamma, _mask(x)]


def _infer_gradient(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    x, gamma, mean, variance, mask, dy = specs
    expect_channels(x, [gamma, mean, variance])
    expect_same_dtype([x, dy])
    expect(dy == x, f"dy like x, {x}", dy)
    expect(mask == _mask(x), f"a mask over x, {_mask(x)}", mask)
    return [x, gamma, gamma]


def _mask(x: TensorSpec) -> TensorSpec:
    return TensorSpec(x.shape, "bool")


def _decompose(graph: Builder, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    normalized, mean, variance = batch_norm(graph, *inputs, epsilon=attributes["epsilon"])
    y = relu(graph, normalized)
    return [y, mean, variance, greater(graph, y, _zero(graph, y))]


def _decompose_gradient(graph: Builder, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    x, gamma, mean, variance, mask, dy = inputs
    passed = select(graph, mask, dy, _zero(graph, dy))
    return batch_norm_gradient(graph, x, gamma, mean, variance, passed, epsilon=attributes["epsilon"])


def _zero(graph: Builder, like: Tensor) -> Tensor:
    return Expr(graph, like).scalar(0.0).tensor


_EPSILON = {"epsilon": "float"}

register(OpDef("batch_norm_relu", _infer, MADE_BY_PASSES, 3, _EPSILON, input_flops(8), decompose=_decompose))
register(
    OpDef(
        "batch_norm_relu_gradient",
        _infer_gradient,
        MADE_BY_PASSES,
        arity=6,
        attributes=_EPSILON,
        flops=input_flops(12),
        decompose=_decompose_gradient,
    )
)
