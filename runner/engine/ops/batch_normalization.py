"""Batch normalisation over the examples (and pixels) of a batch (Ioffe and Szegedy 2015, algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

from runner.engine.graph import Graph, Node
from runner.engine.op import Attributes, ByDecomposition, OpDef, expect, register
from runner.engine.ops.arithmetic import add, div, mul, scale, sqrt, square, sub
from runner.engine.ops.arithmetic import pow as power
from runner.engine.ops.common import expect_dtype, expect_same_dtype, input_flops, scalar
from runner.engine.ops.reduction import reduce_mean, reduce_sum
from runner.engine.ops.shape import reshape
from runner.engine.ops.structural import as_dtype
from runner.engine.tensor import FLOATS, Tensor, TensorSpec, state_dtype


def batch_norm(
    graph: Graph, x: Tensor, gamma: Tensor, beta: Tensor, *, epsilon: float, name: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Add (y, mean, variance): y = gamma * (x - mean) / sqrt(variance + epsilon) + beta, channel by channel.

    x, y: (N, C) or (N, C, H, W); gamma, beta, mean, variance: (C,), in x's dtype, or float32 where that is bfloat16.
    Mean and (biased) variance are those of all values of a channel in the batch.
    """
    node = graph.add("batch_norm", [x, gamma, beta], {"epsilon": epsilon}, name=name)
    return node[0], node[1], node[2]


def batch_norm_gradient(
    graph: Graph,
    x: Tensor,
    gamma: Tensor,
    mean: Tensor,
    variance: Tensor,
    dy: Tensor,
    *,
    epsilon: float,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Add (dx, dgamma, dbeta) for the gradient dy of batch_norm's y.

    With z = (x - mean) / sqrt(variance + epsilon) and means over the m values of a channel:
    dbeta = sum(dy), dgamma = sum(dy * z) and
    dx = gamma / sqrt(variance + epsilon) * (dy - mean(dy) - z * mean(dy * z)).
    """
    inputs = [x, gamma, mean, variance, dy]
    node = graph.add("batch_norm_gradient", inputs, {"epsilon": epsilon}, name=name)
    return node[0], node[1], node[2]


def batch_norm_inference(
    graph: Graph,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float,
    name: str | None = None,
) -> Tensor:
    """Add y = gamma * (x - mean) / sqrt(variance + epsilon) + beta for given statistics; shapes as in batch_norm."""
    return graph.add("batch_norm_inference", [x, gamma, beta, mean, variance], {"epsilon": epsilon}, name=name)[0]


def expect_channels(op: str, x: TensorSpec, vectors: Sequence[TensorSpec]) -> None:
    """Require x of (N, C) or (N, C, H, W) that is not empty, and vectors of (C,), float32 where x is bfloat16."""
    expect_dtype(op, x, FLOATS)
    expect(x.rank in (2, 4), op, "x of shape (N, C) or (N, C, H, W)", x)
    expect(x.size > 0, op, "at least one value per channel", x)
    expected = TensorSpec((x.shape[1],), state_dtype(x.dtype))
    for vector in vectors:
        expect(vector == expected, op, f"one value per channel, {expected}", vector)


def _infer(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    x, gamma, beta = specs
    expect_channels("batch_norm", x, [gamma, beta])
    return [x, gamma, gamma]


def _infer_gradient(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    x, gamma, mean, variance, dy = specs
    expect_channels("batch_norm_gradient", x, [gamma, mean, variance])
    expect_same_dtype("batch_norm_gradient", [x, dy])
    expect(dy == x, "batch_norm_gradient", f"dy like x, {x}", dy)
    return [x, gamma, gamma]


def _infer_inference(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    x, *vectors = specs
    expect_channels("batch_norm_inference", x, vectors)
    return [x]


def _channel_axes(graph: Graph, x: Tensor) -> list[int]:
    """The axes that one channel's values lie along: all but axis 1."""
    return [axis for axis in range(graph.spec(x).rank) if axis != 1]


def per_channel(graph: Graph, vector: Tensor, x: Tensor) -> Tensor:
    """Reshape a (C,) vector so that it broadcasts against x."""
    return reshape(graph, vector, [-1 if axis == 1 else 1 for axis in range(graph.spec(x).rank)])


def _computed_from(graph: Graph, x: Tensor) -> Tensor:
    """x in the dtype of statistics."""
    return as_dtype(graph, x, state_dtype(graph.spec(x).dtype))


def _inverse_deviation(graph: Graph, variance: Tensor, epsilon: float) -> Tensor:
    return power(graph, add(graph, variance, scalar(graph, epsilon, variance)), -0.5)


def _decompose(graph: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    given, gamma, beta = inputs
    x = _computed_from(graph, given)
    axes = _channel_axes(graph, x)
    mean = reduce_mean(graph, x, axes)
    centred = sub(graph, x, per_channel(graph, mean, x))
    variance = reduce_mean(graph, square(graph, centred), axes)
    factor = mul(graph, gamma, _inverse_deviation(graph, variance, attributes["epsilon"]))
    y = add(graph, mul(graph, centred, per_channel(graph, factor, x)), per_channel(graph, beta, x))
    return [as_dtype(graph, y, graph.spec(given).dtype), mean, variance]


def _decompose_gradient(graph: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    given, gamma, mean, variance, given_dy = inputs
    x, dy = _computed_from(graph, given), _computed_from(graph, given_dy)
    axes = _channel_axes(graph, x)
    count = graph.spec(x).size // graph.spec(gamma).size
    inverse = _inverse_deviation(graph, variance, attributes["epsilon"])
    z = mul(graph, sub(graph, x, per_channel(graph, mean, x)), per_channel(graph, inverse, x))
    dbeta = reduce_sum(graph, dy, axes)
    dgamma = reduce_sum(graph, mul(graph, dy, z), axes)
    mean_dy = per_channel(graph, scale(graph, dbeta, 1.0 / count), x)
    mean_dy_z = per_channel(graph, scale(graph, dgamma, 1.0 / count), x)
    projected = sub(graph, sub(graph, dy, mean_dy), mul(graph, z, mean_dy_z))
    dx = mul(graph, projected, per_channel(graph, mul(graph, gamma, inverse), x))
    return [as_dtype(graph, dx, graph.spec(given).dtype), dgamma, dbeta]


def _decompose_inference(graph: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    given, gamma, beta, mean, variance = inputs
    x = _computed_from(graph, given)
    deviation = sqrt(graph, add(graph, variance, scalar(graph, attributes["epsilon"], variance)))
    factor = div(graph, gamma, deviation)
    centred = sub(graph, x, per_channel(graph, mean, x))
    y = add(graph, mul(graph, centred, per_channel(graph, factor, x)), per_channel(graph, beta, x))
    return [as_dtype(graph, y, graph.spec(given).dtype)]


def _gradient(graph: Graph, node: Node, totals: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    x, gamma, _ = node.inputs
    _, mean, variance = node.tensors
    dy, dmean, dvariance = totals
    dgamma: Tensor | None = None
    dbeta: Tensor | None = None
    parts: list[Tensor] = []
    if dy is not None:
        dx, dgamma, dbeta = batch_norm_gradient(graph, x, gamma, mean, variance, dy, epsilon=node.attributes["epsilon"])
        parts.append(dx)
    parts.extend(_statistics_gradients(graph, x, mean, dmean, dvariance))
    total = parts[0] if len(parts) == 1 else graph.add("add_n", parts)[0]
    return [total, dgamma, dbeta]


def _statistics_gradients(
    graph: Graph, x: Tensor, mean: Tensor, dmean: Tensor | None, dvariance: Tensor | None
) -> list[Tensor]:
    """Gradients that reach x through its mean, dmean / m, and variance, 2 (x - mean) dvariance / m."""
    spec, wide = graph.spec(x), _computed_from(graph, x)
    count = spec.size // graph.spec(mean).size
    parts = []
    if dmean is not None:
        share = per_channel(graph, scale(graph, dmean, 1.0 / count), x)
        parts.append(graph.add("broadcast_to", [share], {"shape": spec.shape})[0])
    if dvariance is not None:
        centred = sub(graph, wide, per_channel(graph, mean, x))
        parts.append(mul(graph, centred, per_channel(graph, scale(graph, dvariance, 2.0 / count), x)))
    return [as_dtype(graph, part, spec.dtype) for part in parts]


_EPSILON = {"epsilon": "float"}

register(OpDef("batch_norm", _infer, _gradient, 3, _EPSILON, input_flops(7), decompose=_decompose))
register(
    OpDef(
        "batch_norm_gradient",
        _infer_gradient,
        ByDecomposition(),
        arity=5,
        attributes=_EPSILON,
        flops=input_flops(11),
        decompose=_decompose_gradient,
    )
)
register(
    OpDef(
        "batch_norm_inference",
        _infer_inference,
        ByDecomposition(),
        arity=5,
        attributes=_EPSILON,
        flops=input_flops(3),
        decompose=_decompose_inference,
    )
)
