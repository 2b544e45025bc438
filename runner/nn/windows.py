"""Layers over windows of images (N, C, H, W): convolution, transposed convolution, pooling, and shortcuts of pixels."""

from collections.abc import Sequence
from dataclasses import dataclass

from runner.engine.graph import Initializer, NetworkBuilder, Tensor, he_normal, ops
from runner.errors import ConfigError
from runner.nn.layer import add_bias, expect_rank, new_layer, weights_of

Padding = int | str | Sequence[int]
"""Zeros around an image: one width for all sides, (top, bottom, left, right), "valid" for none, or "same" for
ceil(size / stride) windows along a side. If "same" needs an odd number, the bottom or the right gets one more zero."""


Size = int | tuple[int, int]
"""The sides of a window: one number for both, or (rows, columns)."""


@dataclass(frozen=True)
class Windows:
    """Windows over an image: size and strides as (rows, columns), padding as (top, bottom, left, right)."""

    size: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]


def place(
    image: tuple[int, int], window: Size, stride: int, padding: Padding, *, ceil: bool = False, where: str = ""
) -> Windows:
    """Place windows on an image of (rows, columns).

    There are (size + padding - window) / stride + 1 windows along a side, rounded down. ceil: whether to round up, as
    in Caffe and cuda-convnet, with more zeros at the bottom and the right; no window starts beyond the last pixel.
    Raises ConfigError, which names the smallest possible image, if the image is too small.
    where: the beginning of the message.
    """
    rows, columns = size = sides(window)
    before, after = zip(*(_zeros(image[i], size[i], stride, padding, axis=i) for i in (0, 1)), strict=True)
    overhang = stride - 1 if ceil else 0
    needed = [max(1, size[i] - before[i] - after[i] - overhang) for i in (0, 1)]
    if any(side < least for side, least in zip(image, needed, strict=True)):
        raise ConfigError(
            f"{where}windows of {rows}x{columns} need images of at least {needed[0]}x{needed[1]}, got "
            f"{image[0]}x{image[1]}; use larger images, or a model that downsamples less"
        )
    if ceil:
        after = tuple(after[i] + _overhang(image[i], size[i], stride, before[i], after[i]) for i in (0, 1))
    return Windows(size, (stride, stride), (before[0], after[0], before[1], after[1]))


def sides(window: Size) -> tuple[int, int]:
    """Return the sides of a window as (rows, columns)."""
    return (window, window) if isinstance(window, int) else window


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
    """Return the number of additional zeros that complete the last window if the number of windows is rounded up."""
    padded = low + side + high
    windows = -(-(padded - window) // stride) + 1
    if (windows - 1) * stride >= low + side:
        windows -= 1
    return max(0, (windows - 1) * stride + window - padded)


def conv(
    net: NetworkBuilder,
    x: Tensor,
    filters: int,
    kernel: Size,
    *,
    name: str,
    stride: int = 1,
    padding: Padding = "valid",
    ceil: bool = False,
    dilation: int = 1,
    groups: int = 1,
    bias: float | None = 0.0,
    initializer: Initializer | None = None,
) -> Tensor:
    """Add a convolution with ``kernel`` x ``kernel`` windows: (N, C, H, W) -> (N, filters, H', W').

    kernel: a number, or (rows, columns). ceil: the last window may reach beyond the padded image, as in cuda-convnet;
    see :func:`max_pool`. dilation: the distance between adjacent pixels of a window; a window covers
    dilation * (kernel - 1) + 1 pixels of a side. groups: number of groups of channels, each read by 1/groups of the
    filters. bias: the initial bias; None for no bias. initializer: of the weights (filters, C/groups, rows, columns);
    None for He normal.
    """
    with new_layer(net, name, "conv"):
        rows, columns = sides(kernel)
        covered = (dilation * (rows - 1) + 1, dilation * (columns - 1) + 1)
        windows = place_windows(net, x, covered, stride, padding, ceil=ceil)
        channels = net.graph.spec(x).shape[1] // groups
        fan_in = channels * rows * columns
        weights = weights_of(net, (filters, channels, rows, columns), initializer or he_normal(fan_in))
        y = ops.conv2d(
            net.graph,
            x,
            weights,
            strides=windows.strides,
            padding=windows.padding,
            dilations=(dilation, dilation),
            groups=groups,
        )
        return net.output(y if bias is None else add_bias(net, y, bias))


def conv_transpose(
    net: NetworkBuilder,
    x: Tensor,
    filters: int,
    kernel: int,
    *,
    name: str,
    stride: int = 1,
    padding: Padding = "valid",
    output_padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: float | None = 0.0,
    initializer: Initializer | None = None,
) -> Tensor:
    """Add a transposed convolution: (N, C, H, W) -> (N, filters, H', W').

    Every pixel of the input becomes a window of ``kernel`` x ``kernel`` pixels, and overlapping windows are summed.
    Without the bias, the layer is the adjoint of a convolution with these arguments from images (N, filters, H', W') to
    (N, C, H, W), and equals ConvTranspose2d of PyTorch. H' = (H - 1) * stride + dilation * (kernel - 1) + 1 +
    output_padding, less the padding at the top and at the bottom.

    padding: the pixels that are cut off each side of the result; "same" gives H' = H * stride + output_padding if
    windows cover at least ``stride`` pixels. output_padding: pixels added at the bottom and the right, fewer than
    ``stride``. bias, groups: see :func:`conv`. initializer: of the weights (C, filters/groups, kernel, kernel); None
    for He normal. Raises ConfigError if no pixel remains.
    """
    with new_layer(net, name, "conv"):
        if not 0 <= output_padding < stride:
            raise ValueError(
                f"layer {name!r}: output_padding={output_padding}, expected 0 to {stride - 1}, below stride={stride}"
            )
        size, window = _image_size(net, x), dilation * (kernel - 1) + 1
        zeros = [_zeros(side * stride, window, stride, padding, axis) for axis, side in enumerate(size)]
        rows, columns = (
            (side - 1) * stride + window - sum(cut) + output_padding for side, cut in zip(size, zeros, strict=True)
        )
        if min(rows, columns) < 1:
            raise ConfigError(
                f"layer {name!r} (conv): padding {padding!r} leaves a result of {rows}x{columns} pixels, expected at "
                "least 1x1; use larger images or less padding"
            )
        examples, channels, *_ = net.graph.spec(x).shape
        fan_in = max(1, channels // groups * kernel * kernel // stride**2)
        weights = weights_of(net, (channels, filters // groups, kernel, kernel), initializer or he_normal(fan_in))
        y = ops.conv2d_input_gradient(
            net.graph,
            x,
            weights,
            input_shape=(examples, filters, rows, columns),
            strides=(stride, stride),
            padding=(*zeros[0], *zeros[1]),
            dilations=(dilation, dilation),
            groups=groups,
        )
        return net.output(y if bias is None else add_bias(net, y, bias))


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
        windows = place_windows(net, x, window, stride or window, padding, ceil=ceil)
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
        windows = place_windows(net, x, window, stride or window, padding, ceil=ceil)
        y = ops.avg_pool(net.graph, x, window=windows.size, strides=windows.strides, padding=windows.padding)
        return net.output(y)


def global_avg_pool(net: NetworkBuilder, x: Tensor, *, name: str) -> Tensor:
    """Add global average pooling, the mean of every channel: (N, C, H, W) -> (N, C)."""
    with new_layer(net, name, "pool"):
        expect_rank(net, x, 4, "(N, C, H, W)")
        return net.output(ops.reduce_mean(net.graph, x, axes=(2, 3)))


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


def place_windows(
    net: NetworkBuilder, x: Tensor, window: Size, stride: int, padding: Padding, *, ceil: bool
) -> Windows:
    """Place windows on the images x; raises ConfigError naming the layer if the images are too small."""
    where = f"layer {net.stamp.name!r} ({net.stamp.kind}): "
    return place(_image_size(net, x), window, stride, padding, ceil=ceil, where=where)


def _image_size(net: NetworkBuilder, x: Tensor) -> tuple[int, int]:
    """Return the numbers of rows and columns of the images x; raises ConfigError naming the layer for other inputs."""
    spec = net.graph.spec(x)
    if spec.rank != 4:
        raise ConfigError(
            f"layer {net.stamp.name!r} ({net.stamp.kind}): expected images (N, C, H, W), got {spec}; use a model for "
            "such inputs, such as mlp"
        )
    return spec.shape[2], spec.shape[3]
