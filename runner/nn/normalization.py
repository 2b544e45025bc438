"""Normalization over a batch, over the features of an example, and over neighbouring channels."""

from collections.abc import Sequence

from runner.engine.graph import Constant, Expr, NetworkBuilder, Tensor, apply, ops
from runner.nn.layer import new_layer, per_channel


def batch_norm(
    net: NetworkBuilder, x: Tensor, *, name: str, decay: float = 0.9, epsilon: float = 1e-5, scale: bool = True
) -> Tensor:
    """Add batch normalization of each channel: gamma * (x - mean) / sqrt(variance + epsilon) + beta.

    Ioffe and Szegedy 2015. x: (N, C) or (N, C, H, W). Training uses mean and variance of the batch and requests updates
    of the moving averages, average <- decay * average + (1 - decay) * batch. Evaluation uses the moving averages, or
    the batch if ``net.batch_statistics``. The variance is always the mean squared deviation, without the paper's factor
    m / (m - 1), so that a batch of one value per channel is not a special case. scale: whether gamma is trained;
    otherwise it is 1. Variables (C,): gamma, beta, moving_mean, moving_variance.
    """
    with new_layer(net, name, "norm"):
        channels = net.graph.spec(x).shape[1]
        gamma, beta = _scale_and_offset(net, (channels,), scale=scale)
        mean, variance = (
            net.parameter(f"moving_{key}", (channels,), Constant(value), trainable=False)
            for key, value in (("mean", 0.0), ("variance", 1.0))
        )
        if not (net.training or net.batch_statistics):
            given = (gamma, beta, mean.tensor, variance.tensor)
            return net.output(ops.batch_norm_inference(net.graph, x, *given, epsilon=epsilon))
        y, batch_mean, batch_variance = ops.batch_norm(net.graph, x, gamma, beta, epsilon=epsilon)
        net.advance(mean, batch_mean, decay)
        net.advance(variance, batch_variance, decay, around=mean)
        return net.output(y)


def layer_norm(net: NetworkBuilder, x: Tensor, *, name: str, axes: int = 1, epsilon: float = 1e-5) -> Tensor:
    """Add layer normalization over the last axes: gamma * (x - mean) / sqrt(variance + epsilon) + beta.

    Ba, Kiros and Hinton 2016, section 3. x: (N, ...). axes: the number of last axes that share mean and variance. The
    statistics are those of one example, also in evaluation. Variables gamma and beta have the extents of these axes.
    """
    with new_layer(net, name, "norm"):
        shape = net.graph.spec(x).shape
        if not 1 <= axes < len(shape):
            raise ValueError(f"layer {name!r}: axes={axes}, expected 1 to {len(shape) - 1} for x of shape {shape}")
        gamma, beta = _scale_and_offset(net, shape[-axes:])
        y = _standardized(net, x, range(len(shape) - axes, len(shape)), epsilon)
        return net.output(_scaled(net, y, gamma, beta))


def group_norm(net: NetworkBuilder, x: Tensor, groups: int, *, name: str, epsilon: float = 1e-5) -> Tensor:
    """Add group normalization: gamma * (x - mean) / sqrt(variance + epsilon) + beta, with statistics per group.

    Wu and He 2018, section 3. x: (N, C) or (N, C, H, W). The channels are split into ``groups`` equal groups. Mean and
    variance are computed for each group of each example, also in evaluation. Variables (C,): gamma, beta.
    """
    with new_layer(net, name, "norm"):
        examples, channels, *places = net.graph.spec(x).shape
        if groups < 1 or channels % groups:
            raise ValueError(f"layer {name!r}: groups={groups}, expected a divisor of the {channels} channels")
        grouped = ops.reshape(net.graph, x, (examples, groups, -1))
        y = apply(ops.reshape, _standardized(net, grouped, (2,), epsilon), shape=(examples, channels, *places))
        gamma, beta = (per_channel(net, each, x) for each in _scale_and_offset(net, (channels,)))
        return net.output(_scaled(net, y, gamma, beta))


def _scale_and_offset(net: NetworkBuilder, shape: tuple[int, ...], *, scale: bool = True) -> tuple[Tensor, Tensor]:
    """Return the parameters gamma, initially 1, and beta, initially 0, of this shape; without ``scale``, gamma is 1."""
    gamma = (
        net.parameter("gamma", shape, Constant(1.0)).tensor
        if scale
        else ops.fill(net.graph, 1.0, shape, net.state_dtype)
    )
    return gamma, net.parameter("beta", shape, Constant(0.0)).tensor


def _standardized(net: NetworkBuilder, x: Tensor, axes: Sequence[int], epsilon: float) -> Expr:
    """Return (x - mean) / sqrt(variance + epsilon) in the state dtype, with mean and variance over these axes."""
    wide = Expr(net.graph, ops.as_dtype(net.graph, x, net.state_dtype))
    centred = wide - apply(ops.reduce_mean, wide, axes=axes, keepdims=True)
    variance = apply(ops.reduce_mean, centred.square(), axes=axes, keepdims=True)
    return centred * (1.0 / (variance + epsilon).sqrt())


def _scaled(net: NetworkBuilder, y: Expr, gamma: Tensor, beta: Tensor) -> Tensor:
    """Return gamma * y + beta in the dtype of activations."""
    scaled = Expr(net.graph, gamma) * y + Expr(net.graph, beta)
    return ops.as_dtype(net.graph, scaled.tensor, net.dtype)


def local_response_normalization(
    net: NetworkBuilder,
    x: Tensor,
    *,
    name: str,
    size: int = 5,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 2.0,
    divide_by_size: bool = False,
) -> Tensor:
    """Add the normalization x / (k + alpha * sum of squares over ``size`` neighbouring channels) ** beta.

    Krizhevsky et al. 2012, section 3.3. divide_by_size: divide alpha by ``size``, as cuda-convnet does.
    """
    with new_layer(net, name, "norm"):
        y = ops.local_response_normalization(
            net.graph, x, size=size, alpha=alpha, beta=beta, k=k, divide_by_size=divide_by_size
        )
        return net.output(y)
