"""Layers: functions that add nodes to a network's graph, record the layer on each node, and return the layer's output.

h = nn.relu(net, nn.conv(net, x, 32, 3, name="conv1", padding="same"), name="relu1")

Images are (N, C, H, W). The name of a layer is unique within its network and prefixes the names of its variables
("conv1/weights"). A layer raises ConfigError if the image is too small for it, and ShapeError or ValueError for wrong
arguments, which are a defect of the model.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from runner.engine.graph import ops
from runner.engine.graph.expression import Expr
from runner.engine.graph.initializers import Constant, Initializer, he_normal
from runner.engine.graph.network import NetworkBuilder
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.variables import Variable
from runner.errors import ConfigError

Padding = int | str | Sequence[int]
"""Zeros around an image: one width for all sides, (top, bottom, left, right), "valid" for none, or "same" for as many
as give ceil(size / stride) windows along a side; of an odd number, the bottom or the right side gets one more."""


class TooSmallError(ValueError):
    """The error for an image that is too small for one window."""


@dataclass(frozen=True)
class Windows:
    """Windows over an image: size and strides as (rows, columns), padding as (top, bottom, left, right)."""

    size: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]


def place(image: tuple[int, int], window: int, stride: int, padding: Padding, *, ceil: bool = False) -> Windows:
    """Place square windows on an image of (rows, columns).

    There are (size + padding - window) / stride + 1 windows along a side, rounded down. ceil: whether to round up, as
    in Caffe and cuda-convnet, with more zeros at the bottom and the right; no window starts beyond the last pixel.
    Raises TooSmallError, which names the smallest possible image.
    """
    before, after = zip(*(_zeros(side, window, stride, padding, axis) for axis, side in enumerate(image)), strict=True)
    overhang = stride - 1 if ceil else 0
    needed = [max(1, window - low - high - overhang) for low, high in zip(before, after, strict=True)]
    if any(side < least for side, least in zip(image, needed, strict=True)):
        raise TooSmallError(
            f"windows of {window}x{window} need images of at least {needed[0]}x{needed[1]}, got "
            f"{image[0]}x{image[1]}; use larger images, or a model that downsamples less"
        )
    if ceil:
        after = tuple(
            high + _overhang(side, window, stride, low, high)
            for side, low, high in zip(image, before, after, strict=True)
        )
    return Windows((window, window), (stride, stride), (before[0], after[0], before[1], after[1]))


def _zeros(side: int, window: int, stride: int, padding: Padding, axis: int) -> tuple[int, int]:
    """Return the numbers of zeros before and after an image along axis 0 (rows) or 1 (columns)."""
    if isinstance(padding, int):
        return padding, padding
    if padding == "valid":
        return 0, 0
    if padding == "same":
        windows = -(-side // stride)
        total = max(0, (windows - 1) * stride + window - side)
        return total // 2, total - total // 2
    if isinstance(padding, str) or len(padding) != 4:
        raise ValueError(f"padding {padding!r}: expected 'valid', 'same', a width or (top, bottom, left, right)")
    return padding[2 * axis], padding[2 * axis + 1]


def _overhang(side: int, window: int, stride: int, low: int, high: int) -> int:
    """Return how many more zeros after an image complete the last window if the number of windows is rounded up."""
    padded = low + side + high
    windows = -(-(padded - window) // stride) + 1
    if (windows - 1) * stride >= low + side:
        windows -= 1
    return max(0, (windows - 1) * stride + window - padded)


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
    groups of channels, each read by 1/groups of the filters. bias: the initial bias; None for no bias. initializer: of
    the weights (filters, C/groups, kernel, kernel); None for He normal.
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
    """Add a dense layer, which computes x W + b: (N, features) -> (N, units).

    bias: the initial value of b; None for no bias. initializer: of W (features, units); None for He normal.
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
    """Add max pooling with ``window`` x ``window`` windows. By default the stride is the size of a window.

    Padding is never the maximum. There are (size + padding - window) // stride + 1 windows along a side. If ``ceil``
    is True, the division rounds up, as in Caffe and cuda-convnet: the last window may reach beyond the padded image,
    but does not start beyond the last pixel of the image.
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
    """Add average pooling: the mean of the pixels in a window, not of its padding. Windows: see :func:`max_pool`."""
    with new_layer(net, name, "pool"):
        windows = _place(net, x, window, stride or window, padding, ceil=ceil)
        y = ops.avg_pool(net.graph, x, window=windows.size, strides=windows.strides, padding=windows.padding)
        return net.output(y)


def global_avg_pool(net: NetworkBuilder, x: Tensor, *, name: str) -> Tensor:
    """Add global average pooling, the mean of every channel: (N, C, H, W) -> (N, C)."""
    with new_layer(net, name, "pool"):
        _expect_rank(net, x, 4, "(N, C, H, W)")
        return net.output(ops.reduce_mean(net.graph, x, axes=(2, 3)))


def relu(net: NetworkBuilder, x: Tensor, *, name: str) -> Tensor:
    """Add a ReLU, max(x, 0), for x of any shape."""
    with new_layer(net, name, "activation"):
        return net.output(ops.relu(net.graph, x))


def sigmoid(net: NetworkBuilder, x: Tensor, *, name: str) -> Tensor:
    """Add the logistic function 1 / (1 + e ** -x), for x of any shape."""
    with new_layer(net, name, "activation"):
        return net.output(ops.sigmoid(net.graph, x))


def scale(net: NetworkBuilder, x: Tensor, factor: float, *, name: str, offset: float = 0.0) -> Tensor:
    """Add factor * x + offset with fixed numbers, for x of any shape."""
    with new_layer(net, name, "activation"):
        y = factor * Expr(net.graph, x)
        return net.output((y + offset if offset else y).tensor)


def flatten(net: NetworkBuilder, x: Tensor, *, name: str) -> Tensor:
    """Add a layer that flattens the features of each example: (N, ...) -> (N, features)."""
    with new_layer(net, name, "shape"):
        examples, *rest = net.graph.spec(x).shape
        return net.output(x if len(rest) == 1 else ops.reshape(net.graph, x, (examples, -1)))


def dropout(net: NetworkBuilder, x: Tensor, rate: float, *, name: str) -> Tensor:
    """Add dropout: each value of x (N, ...) is set to 0 with probability ``rate`` and otherwise divided by 1 - rate.

    In evaluation the result is x, which is the expected value of the result in training (Srivastava et al. 2014,
    section 10, in the inverted form). The draws are a function of seed, layer name, step and global example index.
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
    """Add batch normalization of each channel: gamma * (x - mean) / sqrt(variance + epsilon) + beta.

    Ioffe and Szegedy 2015. x: (N, C) or (N, C, H, W). Training uses mean and variance of the batch and requests updates
    of the moving averages, average <- decay * average + (1 - decay) * batch; evaluation uses the moving averages. In
    both cases the variance is the mean squared deviation, without the paper's factor m / (m - 1), so that a batch of
    one value per channel is not a special case. Variables (C,): gamma, beta, moving_mean, moving_variance.
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
    """Add the normalization x / (k + alpha * sum of squares over ``size`` neighbouring channels) ** beta.

    Krizhevsky et al. 2012, section 3.3. divide_by_size: divide alpha by ``size``, as cuda-convnet does.
    """
    with new_layer(net, name, "norm"):
        y = ops.local_response_normalization(
            net.graph, x, size=size, alpha=alpha, beta=beta, k=k, divide_by_size=divide_by_size
        )
        return net.output(y)


@contextmanager
def new_layer(net: NetworkBuilder, name: str, kind: str) -> Iterator[None]:
    """Begin a layer, to which nodes added inside the block belong. Raises ValueError if the name is already in use."""
    # Variables are found by name, so two layers of the same name would share weights without an error.
    if name in net.layer_outputs:
        raise ValueError(f"layer {name!r} is added twice; every layer of a network needs a different name")
    with net.layer(name, kind):
        yield


def _weights(net: NetworkBuilder, shape: tuple[int, ...], initializer: Initializer) -> Tensor:
    return _in_use(net, net.parameter("weights", shape, initializer, decayed=True))


def _in_use(net: NetworkBuilder, parameter: Variable) -> Tensor:
    """Return the value of a parameter, cast to the dtype of activations."""
    return ops.as_dtype(net.graph, parameter.tensor, net.dtype)


def _add_bias(net: NetworkBuilder, y: Tensor, initial: float) -> Tensor:
    """Add one bias per channel of y (N, C) or (N, C, H, W)."""
    _, channels, *places = net.graph.spec(y).shape
    bias = _in_use(net, net.parameter("bias", (channels,), Constant(initial)))
    if places:
        bias = ops.reshape(net.graph, bias, (channels, *(1 for _ in places)))
    return ops.add(net.graph, y, bias)


def _place(net: NetworkBuilder, x: Tensor, window: int, stride: int, padding: Padding, *, ceil: bool) -> Windows:
    """Place windows on the images x; raises ConfigError naming the layer if the images are too small."""
    if net.graph.spec(x).rank != 4:
        raise ConfigError(
            f"layer {net.stamp.name!r} ({net.stamp.kind}): expected images (N, C, H, W), got {net.graph.spec(x)}; use "
            "a model for such inputs, such as mlp"
        )
    height, width = net.graph.spec(x).shape[2:]
    try:
        return place((height, width), window, stride, padding, ceil=ceil)
    except TooSmallError as error:
        raise ConfigError(f"layer {net.stamp.name!r} ({net.stamp.kind}): {error}") from None


def _expect_rank(net: NetworkBuilder, x: Tensor, rank: int, named: str) -> None:
    spec = net.graph.spec(x)
    if spec.rank != rank:
        raise ShapeError(f"layer {net.stamp.name!r} ({net.stamp.kind}): expected an input {named}, got {spec}")


def _expect_one_shape(net: NetworkBuilder, x: Tensor, other: Tensor) -> None:
    left, right = net.graph.spec(x), net.graph.spec(other)
    if left != right:
        name, kind = net.stamp.name, net.stamp.kind
        raise ShapeError(f"layer {name!r} ({kind}): expected two inputs of one shape, got {left} and {right}")


def add(net: NetworkBuilder, x: Tensor, shortcut: Tensor, *, name: str) -> Tensor:
    """Add the sum of x and a shortcut of equal shape and dtype: the end of a residual unit (He et al. 2016, eq. 1)."""
    with new_layer(net, name, "merge"):
        _expect_one_shape(net, x, shortcut)
        return net.output(ops.add(net.graph, x, shortcut))


def multiply(net: NetworkBuilder, x: Tensor, gate: Tensor, *, name: str) -> Tensor:
    """Add the element-wise product of x and a gate of equal shape and dtype (He et al. 2016, section 3.1)."""
    with new_layer(net, name, "merge"):
        _expect_one_shape(net, x, gate)
        return net.output(ops.mul(net.graph, x, gate))


def concat(net: NetworkBuilder, branches: Sequence[Tensor], *, name: str) -> Tensor:
    """Add a layer that concatenates the channels of all branches: (N, C_i, H, W) -> (N, sum of C_i, H, W)."""
    with new_layer(net, name, "merge"):
        return net.output(ops.concat(net.graph, branches, axis=1))


def zero_padded_shortcut(net: NetworkBuilder, x: Tensor, channels: int, *, name: str, stride: int = 1) -> Tensor:
    """Add a shortcut, every stride-th pixel of x and appended channels of zeros: (N, C, H, W) -> (N, channels, H', W').

    H' = (H - 1) // stride + 1 and W' = (W - 1) // stride + 1, as after a convolution with padding "same". He et al.
    2015, "Deep residual learning", section 3.3, option A.
    """
    with new_layer(net, name, "shape"):
        y = x
        if stride > 1:
            # Mean pooling over single pixels selects every stride-th pixel.
            y = ops.avg_pool(net.graph, x, window=(1, 1), strides=(stride, stride))
        lacking = channels - net.graph.spec(x).shape[1]
        return net.output(ops.pad(net.graph, y, low=(0, 0, 0, 0), high=(0, lacking, 0, 0)))
