"""Layers: functions that add nodes to a network's graph, stamp them with the layer, and return its output.

Images are (N, C, H, W). The name of a layer is unique within its network and prefixes the names of its variables
("conv1/weights"). A layer raises ConfigError if the image is too small for it, and ShapeError or ValueError if the
model is wrong.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from runner.engine.graph import ops
from runner.engine.graph.network import NetworkBuilder
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.variables import Constant, Initializer, Variable, he_normal
from runner.errors import ConfigError
from runner.nn.windows import Padding, TooSmallError, Windows, place


def conv(
    net: NetworkBuilder,
    x: Tensor,
    filters: int,
    kernel: int,
    *,
    name: str,
    stride: int = 1,
    padding: Padding = "valid",
    ceil: bool = False,
    groups: int = 1,
    bias: float | None = 0.0,
    initializer: Initializer | None = None,
) -> Tensor:
    """Add a convolution with ``kernel`` x ``kernel`` windows: (N, C, H, W) -> (N, filters, H', W').

    ceil: the last window may reach beyond the padded image, as in cuda-convnet; see :func:`max_pool`. groups: number of
    groups of channels, each read by 1/groups of the filters. bias: its initial value, None for no bias. initializer: of
    the weights (filters, C/groups, kernel, kernel), He's normal by default.
    """
    with new_layer(net, name, "conv"):
        windows = _place(net, x, kernel, stride, padding, ceil=ceil)
        channels = net.graph.spec(x).shape[1] // groups
        fan_in = channels * kernel * kernel
        weights = _weights(net, (filters, channels, kernel, kernel), initializer or he_normal(fan_in))
        y = ops.conv2d(net.graph, x, weights, strides=windows.strides, padding=windows.padding, groups=groups)
        return net.output(y if bias is None else _add_bias(net, y, bias))


def dense(
    net: NetworkBuilder,
    x: Tensor,
    units: int,
    *,
    name: str,
    bias: float | None = 0.0,
    initializer: Initializer | None = None,
) -> Tensor:
    """Add x W + b: (N, features) -> (N, units).

    bias: its initial value, None for no bias. initializer: of W (features, units), He's normal by default.
    """
    with new_layer(net, name, "dense"):
        _expect_rank(net, x, 2, "(N, features); flatten images first")
        features = net.graph.spec(x).shape[1]
        weights = _weights(net, (features, units), initializer or he_normal(features))
        y = ops.matmul(net.graph, x, weights)
        return net.output(y if bias is None else _add_bias(net, y, bias))


def max_pool(
    net: NetworkBuilder,
    x: Tensor,
    window: int,
    *,
    name: str,
    stride: int | None = None,
    padding: Padding = "valid",
    ceil: bool = False,
) -> Tensor:
    """Add the maximum of every ``window`` x ``window`` window, whose stride is its size by default.

    Padding is never the maximum. There are (size + padding - window) // stride + 1 windows along a side. With ``ceil``,
    the division rounds up, as in Caffe and cuda-convnet: the last window may reach beyond the padded image, but starts
    inside the image or the padding before it.
    """
    with new_layer(net, name, "pool"):
        windows = _place(net, x, window, stride or window, padding, ceil=ceil)
        y, _ = ops.max_pool(net.graph, x, window=windows.size, strides=windows.strides, padding=windows.padding)
        return net.output(y)


def avg_pool(
    net: NetworkBuilder,
    x: Tensor,
    window: int,
    *,
    name: str,
    stride: int | None = None,
    padding: Padding = "valid",
    ceil: bool = False,
) -> Tensor:
    """Add the mean of every window over its pixels inside the image; windows as in :func:`max_pool`."""
    with new_layer(net, name, "pool"):
        windows = _place(net, x, window, stride or window, padding, ceil=ceil)
        y = ops.avg_pool(net.graph, x, window=windows.size, strides=windows.strides, padding=windows.padding)
        return net.output(y)


def global_avg_pool(net: NetworkBuilder, x: Tensor, *, name: str) -> Tensor:
    """Add the mean of every channel: (N, C, H, W) -> (N, C)."""
    with new_layer(net, name, "pool"):
        _expect_rank(net, x, 4, "(N, C, H, W)")
        return net.output(ops.reduce_mean(net.graph, x, axes=(2, 3)))


def relu(net: NetworkBuilder, x: Tensor, *, name: str) -> Tensor:
    """Add max(x, 0), any shape."""
    with new_layer(net, name, "activation"):
        return net.output(ops.relu(net.graph, x))


def flatten(net: NetworkBuilder, x: Tensor, *, name: str) -> Tensor:
    """Add x with the features of each example flattened: (N, ...) -> (N, features)."""
    with new_layer(net, name, "shape"):
        examples, *rest = net.graph.spec(x).shape
        return net.output(x if len(rest) == 1 else ops.reshape(net.graph, x, (examples, -1)))


def dropout(net: NetworkBuilder, x: Tensor, rate: float, *, name: str) -> Tensor:
    """Add x (N, ...) with values set to 0 with probability ``rate`` and the others divided by 1 - rate.

    Evaluation returns x, which is the expectation of the result (Srivastava et al. 2014, section 10, in its inverted
    form). The draws are a function of seed, layer name, step and global example index.
    """
    with new_layer(net, name, "regularizer"):
        if not net.training or rate == 0.0:
            return net.output(x)
        mask = ops.dropout_mask(
            net.graph,
            net.step,
            net.index,
            shape=net.graph.spec(x).shape,
            dtype=net.dtype,
            rate=rate,
            seed=net.seed,
            key=name,
        )
        return net.output(ops.mul(net.graph, x, mask))


def batch_norm(net: NetworkBuilder, x: Tensor, *, name: str, decay: float = 0.9, epsilon: float = 1e-5) -> Tensor:
    """Add gamma * (x - mean) / sqrt(variance + epsilon) + beta, channel by channel (Ioffe and Szegedy 2015).

    x: (N, C) or (N, C, H, W). Training uses mean and variance of the batch and requests that the moving averages be
    advanced, average <- decay * average + (1 - decay) * batch; evaluation uses the averages. The variance is the mean
    squared deviation in both, without the paper's m / (m - 1) for evaluation, so that a batch of one value per channel
    is no special case. Variables (C,): gamma, beta, moving_mean, moving_variance.
    """
    with new_layer(net, name, "norm"):
        channels = net.graph.spec(x).shape[1]
        gamma, beta = (
            net.parameter(key, (channels,), Constant(value)) for key, value in (("gamma", 1.0), ("beta", 0.0))
        )
        mean, variance = (
            net.parameter(f"moving_{key}", (channels,), Constant(value), trainable=False)
            for key, value in (("mean", 0.0), ("variance", 1.0))
        )
        if not net.training:
            given = [each.tensor for each in (gamma, beta, mean, variance)]
            return net.output(ops.batch_norm_inference(net.graph, x, *given, epsilon=epsilon))
        y, batch_mean, batch_variance = ops.batch_norm(net.graph, x, gamma.tensor, beta.tensor, epsilon=epsilon)
        net.advance(mean, batch_mean, decay)
        net.advance(variance, batch_variance, decay)
        return net.output(y)


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
    """Add x / (k + alpha * sum of squares over ``size`` neighbouring channels) ** beta.

    Krizhevsky et al. 2012, section 3.3. divide_by_size: divide alpha by ``size``, as cuda-convnet does.
    """
    with new_layer(net, name, "norm"):
        y = ops.local_response_normalization(
            net.graph, x, size=size, alpha=alpha, beta=beta, k=k, divide_by_size=divide_by_size
        )
        return net.output(y)


@contextmanager
def new_layer(net: NetworkBuilder, name: str, kind: str) -> Iterator[None]:
    """Begin a layer; raises ValueError if the network already has a layer of this name."""
    # Variables are found by name, so two layers of one name would silently share weights.
    if name in net.layer_outputs:
        raise ValueError(f"layer {name!r} is added twice; every layer of a network needs a different name")
    with net.layer(name, kind):
        yield


def _weights(net: NetworkBuilder, shape: tuple[int, ...], initializer: Initializer) -> Tensor:
    return _in_use(net, net.parameter("weights", shape, initializer, decayed=True))


def _in_use(net: NetworkBuilder, parameter: Variable) -> Tensor:
    """Return the value of a parameter in the dtype of activations."""
    return ops.as_dtype(net.graph, parameter.tensor, net.dtype)


def _add_bias(net: NetworkBuilder, y: Tensor, initial: float) -> Tensor:
    """Add one bias per channel of y (N, C) or (N, C, H, W)."""
    _, channels, *places = net.graph.spec(y).shape
    bias = _in_use(net, net.parameter("bias", (channels,), Constant(initial)))
    if places:
        bias = ops.reshape(net.graph, bias, (channels, *(1 for _ in places)))
    return ops.add(net.graph, y, bias)


def _place(net: NetworkBuilder, x: Tensor, window: int, stride: int, padding: Padding, *, ceil: bool) -> Windows:
    """Place windows on the images x; raises ConfigError naming the layer if an image holds none."""
    _expect_rank(net, x, 4, "(N, C, H, W)")
    height, width = net.graph.spec(x).shape[2:]
    try:
        return place((height, width), window, stride, padding, ceil=ceil)
    except TooSmallError as error:
        raise ConfigError(f"layer {net.stamp.name!r} ({net.stamp.kind}): {error}") from None


def _expect_rank(net: NetworkBuilder, x: Tensor, rank: int, named: str) -> None:
    spec = net.graph.spec(x)
    if spec.rank != rank:
        raise ShapeError(f"layer {net.stamp.name!r} ({net.stamp.kind}): expected an input {named}, came {spec}")


def add(net: NetworkBuilder, x: Tensor, shortcut: Tensor, *, name: str) -> Tensor:
    """Add x + shortcut, both of one shape: the end of a residual unit (He et al. 2016, eq. 1)."""
    with new_layer(net, name, "merge"):
        left, right = net.graph.spec(x), net.graph.spec(shortcut)
        if left != right:
            raise ShapeError(f"layer {name!r} (merge): expected two inputs of one shape, came {left} and {right}")
        return net.output(ops.add(net.graph, x, shortcut))


def concat(net: NetworkBuilder, branches: Sequence[Tensor], *, name: str) -> Tensor:
    """Add the channels of all branches (N, C_i, H, W) one after the other: (N, sum of C_i, H, W)."""
    with new_layer(net, name, "merge"):
        return net.output(ops.concat(net.graph, branches, axis=1))


def zero_padded_shortcut(net: NetworkBuilder, x: Tensor, channels: int, *, name: str, stride: int = 1) -> Tensor:
    """Add every stride-th pixel of x (N, C, H, W), padded by channels of zeros: (N, channels, H', W').

    H' = (H - 1) // stride + 1, likewise W', as for a convolution padded to keep the size. He et al. 2015, "Deep
    residual learning", section 3.3, option A.
    """
    with new_layer(net, name, "shape"):
        y = x
        if stride > 1:
            # Means over single pixels take every stride-th pixel.
            y = ops.avg_pool(net.graph, x, window=(1, 1), strides=(stride, stride))
        lacking = channels - net.graph.spec(x).shape[1]
        return net.output(ops.pad(net.graph, y, low=(0, 0, 0, 0), high=(0, lacking, 0, 0)))
