"""Batch normalisation with the ReLU that follows it, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

from runner.engine.graph import Graph
from runner.engine.op import Attributes, OpDef, expect, register
from runner.engine.ops.activation import relu
from runner.engine.ops.batch_normalization import batch_norm, batch_norm_gradient, expect_channels
from runner.engine.ops.common import MADE_BY_PASSES, expect_same_dtype, input_flops, scalar
from runner.engine.ops.comparison import greater, select
from runner.engine.tensor import Tensor, TensorSpec


def batch_norm_relu(
    graph: Graph, x: Tensor, gamma: Tensor, beta: Tensor, *, epsilon: float, name: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Add (y, mean, variance, mask): batch_norm with y = max(y, 0), and mask = y > 0, bool, of x's shape."""
    node = graph.add("batch_norm_relu", [x, gamma, beta], {"epsilon": epsilon}, name=name)
    return node[0], node[1], node[2], node[3]


def batch_norm_relu_gradient(
    graph: Graph,
    x: Tensor,
    gamma: Tensor,
    mean: Tensor,
    variance: Tensor,
    mask: Tensor,
    dy: Tensor,
    *,
    epsilon: float,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Add (dx, dgamma, dbeta) for the gradient dy of batch_norm_relu's y: batch_norm_gradient of dy where mask."""
    inputs = [x, gamma, mean, variance, mask, dy]
    node = graph.add("batch_norm_relu_gradient", inputs, {"epsilon": epsilon}, name=name)
    return node[0], node[1], node[2]


def _infer(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    x, gamma, beta = specs
    expect_channels("batch_norm_relu", x, [gamma, beta])
    return [x, gamma, gamma, _mask(x)]


def _infer_gradient(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    op = "batch_norm_relu_gradient"
    x, gamma, mean, variance, mask, dy = specs
    expect_channels(op, x, [gamma, mean, variance])
    expect_same_dtype(op, [x, dy])
    expect(dy == x, op, f"dy like x, {x}", dy)
    expect(mask == _mask(x), op, f"a mask over x, {_mask(x)}", mask)
    return [x, gamma, gamma]


def _mask(x: TensorSpec) -> TensorSpec:
    return TensorSpec(x.shape, "bool")


def _decompose(graph: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    normalised, mean, variance = batch_norm(graph, *inputs, epsilon=attributes["epsilon"])
    y = relu(graph, normalised)
    return [y, mean, variance, greater(graph, y, scalar(graph, 0.0, y))]


def _decompose_gradient(graph: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    x, gamma, mean, variance, mask, dy = inputs
    passed = select(graph, mask, dy, scalar(graph, 0.0, dy))
    return batch_norm_gradient(graph, x, gamma, mean, variance, passed, epsilon=attributes["epsilon"])


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
