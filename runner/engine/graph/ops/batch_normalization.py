"""Batch normalization over the examples (and pixels) of a batch (Ioffe and Szegedy 2015, algorithm 1).

Two ops combine batch normalization with the ReLU that follows it:

* ``batch_norm_relu``: maps x, gamma, beta to (y, mean, variance, mask), where y is the ReLU of batch_norm's y. mask:
  bool, of x's shape, true where y > 0.
* ``batch_norm_relu_gradient``: maps x, gamma, mean, variance, mask, dy to (dx, dgamma, dbeta) like batch_norm_gradient,
  but first sets dy to 0 where mask is false.
"""

from collections.abc import Sequence

from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.node import Node
from runner.engine.graph.op import Attributes, Builder, ByDecomposition, OpDef, Specs, expect, register
from runner.engine.graph.ops.activation import relu
from runner.engine.graph.ops.arithmetic import greater, select
from runner.engine.graph.ops.common import MADE_BY_PASSES, decomposition, expect_dtype, input_flops
from runner.engine.graph.ops.reduction import broadcast_to, reduce_mean, reduce_sum
from runner.engine.graph.ops.shape import reshape
from runner.engine.graph.ops.structural import as_dtype
from runner.engine.graph.tensor import FLOATS, Tensor, TensorSpec, state_dtype


def batch_norm(
    graph: Builder, x: Tensor, gamma: Tensor, beta: Tensor, *, epsilon: float, name: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Add a node for (y, mean, variance): y = gamma * (x - mean) / sqrt(variance + epsilon) + beta, channel by channel.

    x, y: (N, C) or (N, C, H, W); gamma, beta, mean, variance: (C,), in x's dtype, or float32 if x is bfloat16.
    Mean and (biased) variance are computed over all values of a channel in the batch.
    """
    node = graph.add("batch_norm", [x, gamma, beta], {"epsilon": epsilon}, name=name)
    return node[0], node[1], node[2]


def batch_norm_gradient(
    graph: Builder, x: Tensor, gamma: Tensor, mean: Tensor, variance: Tensor, dy: Tensor, *, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Add a node for (dx, dgamma, dbeta), given the gradient dy of batch_norm's y.

    With z = (x - mean) / sqrt(variance + epsilon) and means over the m values of a channel:
    dbeta = sum(dy), dgamma = sum(dy * z) and
    dx = gamma / sqrt(variance + epsilon) * (dy - mean(dy) - z * mean(dy * z)).
    """
    node = graph.add("batch_norm_gradient", [x, gamma, mean, variance, dy], {"epsilon": epsilon})
    return node[0], node[1], node[2]


def batch_norm_inference(
    graph: Builder,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float,
    name: str | None = None,
) -> Tensor:
    """Add a node for batch_norm's y = gamma * (x - mean) / sqrt(variance + epsilon) + beta, with given statistics."""
    return graph.add("batch_norm_inference", [x, gamma, beta, mean, variance], {"epsilon": epsilon}, name=name)[0]


def expect_channels(x: TensorSpec, vectors: Sequence[TensorSpec]) -> None:
    """Require a non-empty x of shape (N, C) or (N, C, H, W), and vectors of shape (C,) in x's state dtype."""
    expect_dtype(x, FLOATS)
    expect(x.rank in (2, 4), "x of shape (N, C) or (N, C, H, W)", x)
    expect(x.size > 0, "at least one value per channel", x)
    expected = TensorSpec((x.shape[1],), state_dtype(x.dtype))
    for vector in vectors:
        expect(vector == expected, f"one value per channel, {expected}", vector)


def _infer(x: TensorSpec, gamma: TensorSpec, beta: TensorSpec, *, epsilon: float) -> Specs:
    expect_channels(x, [gamma, beta])
    return [x, gamma, gamma]


def _infer_gradient(*specs: TensorSpec, epsilon: float) -> Specs:
    x, gamma, mean, variance, dy = specs
    expect_channels(x, [gamma, mean, variance])
    expect(dy == x, f"dy like x, {x}", dy)
    return [x, gamma, gamma]


def _infer_inference(x: TensorSpec, *vectors: TensorSpec, epsilon: float) -> Specs:
    expect_channels(x, vectors)
    return [x]


def _channel_axes(x: Expr) -> list[int]:
    """Return the axes over which the statistics of a channel are computed: all but axis 1."""
    return [axis for axis in range(x.spec.rank) if axis != 1]


def _per_channel(vector: Expr, x: Expr) -> Expr:
    """Reshape a (C,) vector so that it broadcasts against x."""
    return apply(reshape, vector, shape=[-1 if axis == 1 else 1 for axis in range(x.spec.rank)])


def _in_state_dtype(x: Expr) -> Expr:
    return apply(as_dtype, x, dtype=state_dtype(x.spec.dtype))


@decomposition
def _decompose(attributes: Attributes, given: Expr, gamma: Expr, beta: Expr) -> Sequence[Expr]:
    x = _in_state_dtype(given)
    axes = _channel_axes(x)
    mean = apply(reduce_mean, x, axes=axes)
    centred = x - _per_channel(mean, x)
    variance = apply(reduce_mean, centred.square(), axes=axes)
    factor = gamma * (variance + attributes["epsilon"]) ** -0.5
    y = centred * _per_channel(factor, x) + _per_channel(beta, x)
    return [apply(as_dtype, y, dtype=given.spec.dtype), mean, variance]


@decomposition
def _decompose_gradient(
    attributes: Attributes, given: Expr, gamma: Expr, mean: Expr, variance: Expr, given_dy: Expr
) -> Sequence[Expr]:
    x, dy = _in_state_dtype(given), _in_state_dtype(given_dy)
    axes = _channel_axes(x)
    count = x.spec.size // gamma.spec.size
    inverse = (variance + attributes["epsilon"]) ** -0.5
    z = (x - _per_channel(mean, x)) * _per_channel(inverse, x)
    dbeta = apply(reduce_sum, dy, axes=axes)
    dgamma = apply(reduce_sum, dy * z, axes=axes)
    mean_dy = _per_channel(dbeta * (1.0 / count), x)
    mean_dy_z = _per_channel(dgamma * (1.0 / count), x)
    dx = (dy - mean_dy - z * mean_dy_z) * _per_channel(gamma * inverse, x)
    return [apply(as_dtype, dx, dtype=given.spec.dtype), dgamma, dbeta]


@decomposition
def _decompose_inference(
    attributes: Attributes, given: Expr, gamma: Expr, beta: Expr, mean: Expr, variance: Expr
) -> Sequence[Expr]:
    x = _in_state_dtype(given)
    factor = gamma / (variance + attributes["epsilon"]).sqrt()
    centred = x - _per_channel(mean, x)
    y = centred * _per_channel(factor, x) + _per_channel(beta, x)
    return [apply(as_dtype, y, dtype=given.spec.dtype)]


def _gradient(graph: Builder, node: Node, totals: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    x, gamma, _ = node.inputs
    _, mean, variance = node.tensors
    dy, dmean, dvariance = totals
    of_y: tuple[Tensor, ...] = ()
    if dy is not None:
        of_y = batch_norm_gradient(graph, x, gamma, mean, variance, dy, **node.attributes)
    parts = [*of_y[:1], *_statistics_gradients(graph, x, mean, dmean, dvariance)]
    total = parts[0] if len(parts) == 1 else graph.add("add_n", parts)[0]
    dgamma, dbeta = of_y[1:] or (None, None)
    return [total, dgamma, dbeta]


def _statistics_gradients(
    graph: Builder, given: Tensor, mean_of: Tensor, dmean: Tensor | None, dvariance: Tensor | None
) -> list[Tensor]:
    """Return terms of dx: dmean / m and 2 (x - mean) dvariance / m, where m is the number of values per channel."""
    mean = Expr(graph, mean_of)
    x = _in_state_dtype(Expr(graph, given))
    count = x.spec.size // mean.spec.size
    parts = []
    if dmean is not None:
        share = _per_channel(Expr(graph, dmean) * (1.0 / count), x)
        parts.append(apply(broadcast_to, share, shape=x.spec.shape))
    if dvariance is not None:
        centred = x - _per_channel(mean, x)
        parts.append(centred * _per_channel(Expr(graph, dvariance) * (2.0 / count), x))
    return [as_dtype(graph, part.tensor, graph.spec(given).dtype) for part in parts]


def _infer_relu(x: TensorSpec, gamma: TensorSpec, beta: TensorSpec, *, epsilon: float) -> Specs:
    return [*_infer(x, gamma, beta, epsilon=epsilon), _mask(x)]


def _infer_relu_gradient(*specs: TensorSpec, epsilon: float) -> Specs:
    *given, mask, dy = specs
    found = _infer_gradient(*given, dy, epsilon=epsilon)
    expect(mask == _mask(specs[0]), f"a mask over x, {_mask(specs[0])}", mask)
    return found


def _mask(x: TensorSpec) -> TensorSpec:
    return TensorSpec(x.shape, "bool")


def _decompose_relu(graph: Builder, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    normalized, mean, variance = batch_norm(graph, *inputs, epsilon=attributes["epsilon"])
    y = relu(graph, normalized)
    return [y, mean, variance, greater(graph, y, _zero(graph, y))]


def _decompose_relu_gradient(graph: Builder, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    x, gamma, mean, variance, mask, dy = inputs
    passed = select(graph, mask, dy, _zero(graph, dy))
    return batch_norm_gradient(graph, x, gamma, mean, variance, passed, epsilon=attributes["epsilon"])


def _zero(graph: Builder, like: Tensor) -> Tensor:
    return Expr(graph, like).scalar(0.0).tensor


_EPSILON = {"epsilon": "float"}
_BY_PARTS = ByDecomposition()

register(
    OpDef("batch_norm", _infer, _gradient, 3, _EPSILON, input_flops(7), decompose=_decompose),
    OpDef("batch_norm_relu", _infer_relu, MADE_BY_PASSES, 3, _EPSILON, input_flops(8), decompose=_decompose_relu),
    OpDef(
        "batch_norm_gradient", _infer_gradient, _BY_PARTS, 5, _EPSILON, input_flops(11), decompose=_decompose_gradient
    ),
    OpDef(
        "batch_norm_inference", _infer_inference, _BY_PARTS, 5, _EPSILON, input_flops(3), decompose=_decompose_inference
    ),
    OpDef(
        "batch_norm_relu_gradient",
        _infer_relu_gradient,
        MADE_BY_PASSES,
        arity=6,
        attributes=_EPSILON,
        flops=input_flops(12),
        decompose=_decompose_relu_gradient,
    ),
)
