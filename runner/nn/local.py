"""Locally connected layers of images, and normalization over neighbouring pixels."""

import math

import numpy as np
from numpy.typing import NDArray

from runner.engine.graph import Constant, Expr, Initializer, NetworkBuilder, Tensor, apply, he_normal, ops
from runner.nn.layer import in_use, new_layer, weights_of
from runner.nn.windows import place_windows


def locally_connected(
    net: NetworkBuilder,
    x: Tensor,
    filters: int,
    kernel: int,
    *,
    name: str,
    stride: int = 1,
    initializer: Initializer | None = None,
) -> Tensor:
    """Add a locally connected layer: ``kernel`` x ``kernel`` filters whose weights differ from window to window.

    (N, C, H, W) -> (N, filters, H', W'), as for a convolution without padding. Each output value has a separate bias.

    Le et al. 2012, "Building high-level features", section 3; Dean et al. 2012, section 5. initializer: of the weights,
    (H' * W' * filters, C * kernel * kernel, 1, 1); None for He normal.
    """
    with new_layer(net, name, "conv"):
        place_windows(net, x, kernel, stride, "valid", ceil=False)
        examples, channels, height, width = net.graph.spec(x).shape
        rows, columns = ((side - kernel) // stride + 1 for side in (height, width))
        read = _positions((channels, height, width), kernel, stride)
        places, values = read.shape
        # Each window becomes a group of channels of a one-pixel image, so no filter reads another window.
        flat = ops.transpose(net.graph, ops.reshape(net.graph, x, (examples, -1)), (1, 0))
        windows = ops.gather(net.graph, flat, ops.constant(net.graph, read.reshape(-1)))
        windows = ops.reshape(net.graph, ops.transpose(net.graph, windows, (1, 0)), (examples, places * values, 1, 1))
        weights = weights_of(net, (places * filters, values, 1, 1), initializer or he_normal(values))
        y = ops.conv2d(net.graph, windows, weights, groups=places)
        y = ops.transpose(net.graph, ops.reshape(net.graph, y, (examples, rows, columns, filters)), (0, 3, 1, 2))
        bias = in_use(net, net.parameter("bias", (filters, rows, columns), Constant(0.0)))
        return net.output(ops.add(net.graph, y, bias))


def local_contrast_normalization(
    net: NetworkBuilder, x: Tensor, *, name: str, size: int = 9, epsilon: float = 0.01
) -> Tensor:
    """Add (x - m) / sqrt(v + epsilon), with the mean and the variance of ``size`` x ``size`` pixels and all channels.

    Jarrett et al. 2009, section 2, with equal instead of Gaussian weights. x: (N, C, H, W). A window is centred at each
    pixel; pixels outside the image do not count. size: an odd number.
    """
    with new_layer(net, name, "norm"):

        def mean(values: Expr) -> Expr:
            pooled = apply(ops.avg_pool, values, window=(size, size), strides=(1, 1), padding=(size // 2,) * 4)
            return apply(ops.reduce_mean, pooled, axes=(1,), keepdims=True)

        centered = Expr(net.graph, x) - mean(Expr(net.graph, x))
        variance = mean(centered * centered)
        return net.output((centered / apply(ops.sqrt, variance + epsilon)).tensor)


def _positions(image: tuple[int, int, int], kernel: int, stride: int) -> NDArray[np.int64]:
    """Return the indices, in a flattened image (C, H, W), of the values of each window: (windows, C * kernel ** 2)."""
    indices = np.arange(math.prod(image), dtype=np.int64).reshape(image)
    windows = np.lib.stride_tricks.sliding_window_view(indices, (kernel, kernel), axis=(1, 2))[:, ::stride, ::stride]
    return windows.transpose(1, 2, 0, 3, 4).reshape(windows.shape[1] * windows.shape[2], -1)
