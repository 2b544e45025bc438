"""Convolution, and max and average pooling, over sliding windows of padded images (N, C, H, W).

Padding is (top, bottom, left, right); strides, dilations and windows are (rows, columns).

Convolution is a matrix multiplication: every example's windows are laid out as columns (im2col). Each example and group
is a separate matrix product, so the result of an example does not depend on other examples, and the weight gradient is
summed example by example. Consecutive examples whose columns fit into the CPU cache are processed together, which does
not affect the result. Symbols: N examples, G groups, K = C/G * R * S values in a window, P = H' * W' windows.

Pooling makes one pass over the images for every position in a window.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from runner.kernels.contract import Array
from runner.kernels.registry import reference

Ints = tuple[int, ...]
Place = tuple[slice, slice, slice, slice]


def padded(x: Array, padding: Ints, value: float = 0.0) -> Array:
    """Return images padded with ``value``; if all paddings are 0, return the images themselves."""
    if not any(padding):
        return x
    image = np.full(padded_shape(x.shape, padding), value, x.dtype)
    inner(image, padding)[...] = x
    return image


def padded_shape(shape: Ints, padding: Ints) -> Ints:
    """Return the shape of images of ``shape`` after padding."""
    top, bottom, left, right = padding
    return (*shape[:2], shape[2] + top + bottom, shape[3] + left + right)


def inner(image: Array, padding: Ints) -> Array:
    """Return a view of padded images that excludes the padding."""
    top, bottom, left, right = padding
    return image[:, :, top : image.shape[2] - bottom, left : image.shape[3] - right]


def window_counts(image: Array, window: Ints, strides: Ints) -> Ints:
    """Return the numbers of windows of a padded image, vertically and horizontally."""
    rows = (image.shape[2] - window[0]) // strides[0] + 1
    columns = (image.shape[3] - window[1]) // strides[1] + 1
    return rows, columns


def places(counts: Ints, window: Ints, strides: Ints, dilations: Ints = (1, 1)) -> list[Place]:
    """Return, for each pixel of a window, row by row, the slices that select this pixel of every window in images."""
    rows, columns = (range(0, size * step, step) for size, step in zip(window, dilations, strict=True))
    return [
        (slice(None), slice(None), _every(row, counts[0], strides[0]), _every(column, counts[1], strides[1]))
        for row in rows
        for column in columns
    ]


def _every(start: int, count: int, stride: int) -> slice:
    return slice(start, start + stride * (count - 1) + 1, stride)


_RUN_BYTES = 1 << 18


def _runs(columns: Ints, itemsize: int) -> Iterator[slice]:
    """Yield consecutive slices of the examples; each covers at most ``_RUN_BYTES`` of columns, or a single example."""
    length = max(1, _RUN_BYTES // max(1, math.prod(columns[1:]) * itemsize))
    for start in range(0, columns[0], length):
        yield slice(start, start + length)


def _windows(x: Array, window: Ints, strides: Ints, padding: Ints, dilations: Ints, groups: int) -> Array:
    """Return a view of all windows, (N, G, C/G, R, S, H', W')."""
    image = padded(x, padding)
    grouped = image.reshape(len(image), groups, image.shape[1] // groups, *image.shape[2:])
    covered = tuple((size - 1) * step + 1 for size, step in zip(window, dilations, strict=True))
    every = sliding_window_view(grouped, covered, axis=(3, 4))[:, :, :, :: strides[0], :: strides[1]]
    return every[..., :: dilations[0], :: dilations[1]].transpose(0, 1, 2, 5, 6, 3, 4)


def _columns_shape(examples: int, weight_shape: Ints, groups: int, counts: Ints) -> Ints:
    """Return the shape of the columns of ``examples`` examples, (N, G, K, P)."""
    return examples, groups, math.prod(weight_shape[1:]), math.prod(counts)


@reference("conv2d")
def conv2d(x: Array, w: Array, *, strides: Ints, padding: Ints, dilations: Ints, groups: int) -> Array:
    windows = _windows(x, w.shape[2:], strides, padding, dilations, groups)
    counts = windows.shape[-2:]
    shape = _columns_shape(len(x), w.shape, groups, counts)
    filters = w.reshape(groups, len(w) // groups, shape[2])
    y = np.empty((len(x), groups, len(w) // groups, shape[3]), x.dtype)
    for run in _runs(shape, x.itemsize):
        columns = windows[run].reshape(-1, *shape[1:])
        np.matmul(filters, columns, out=y[run])
    return y.reshape(len(x), len(w), *counts)


@reference("conv2d_weight_gradient")
def conv2d_weight_gradient(
    dy: Array, x: Array, *, weight_shape: Ints, strides: Ints, padding: Ints, dilations: Ints, groups: int, dtype: str
) -> Array:
    windows = _windows(x, weight_shape[2:], strides, padding, dilations, groups)
    shape = _columns_shape(len(x), weight_shape, groups, dy.shape[2:])
    outputs = dy.reshape(len(dy), groups, weight_shape[0] // groups, shape[3])
    dw = np.zeros((groups, weight_shape[0] // groups, shape[2]), dy.dtype)
    for run in _runs(shape, x.itemsize):
        columns = windows[run].reshape(-1, *shape[1:])
        for product in np.matmul(outputs[run], columns.swapaxes(-1, -2)):
            dw += product
    return dw.reshape(weight_shape).astype(dtype, copy=False)


@reference("conv2d_input_gradient")
def conv2d_input_gradient(
    dy: Array, w: Array, *, input_shape: Ints, strides: Ints, padding: Ints, dilations: Ints, groups: int
) -> Array:
    window, counts = w.shape[2:], dy.shape[2:]
    shape = _columns_shape(len(dy), w.shape, groups, counts)
    filters = w.reshape(groups, len(w) // groups, shape[2]).swapaxes(-1, -2)
    outputs = dy.reshape(len(dy), groups, len(w) // groups, shape[3])
    image = np.zeros(padded_shape(input_shape, padding), dy.dtype)
    for run in _runs(shape, dy.itemsize):
        columns = np.matmul(filters, outputs[run])
        by_position = columns.reshape(len(columns), input_shape[1], math.prod(window), *counts)
        for position, place in enumerate(places(counts, window, strides, dilations)):
            image[run][place] += by_position[:, :, position]
    return inner(image, padding)


@reference("max_pool")
def max_pool(x: Array, *, window: Ints, strides: Ints, padding: Ints) -> tuple[Array, Array]:
    image = padded(x, padding, -np.inf)
    first, *others = places(window_counts(image, window, strides), window, strides)
    best = image[first].copy()
    argmax = np.zeros(best.shape, np.int32)
    for position, place in enumerate(others, start=1):
        candidate = image[place]
        # Positions ascend from call to call, so their maximum is the last position at which ``best`` increased.
        np.maximum(argmax, np.int32(position) * (candidate > best), out=argmax)
        np.maximum(best, candidate, out=best)
    return best, argmax


@reference("max_pool_gradient")
def max_pool_gradient(
    dy: Array, argmax: Array, *, input_shape: Ints, window: Ints, strides: Ints, padding: Ints
) -> Array:
    image = np.zeros(padded_shape(input_shape, padding), dy.dtype)
    for position, place in enumerate(places(dy.shape[2:], window, strides)):
        image[place] += np.where(argmax == position, dy, dy.dtype.type(0))
    return inner(image, padding)


@reference("max_pool_gather")
def max_pool_gather(x: Array, argmax: Array, *, window: Ints, strides: Ints, padding: Ints) -> Array:
    image = padded(x, padding)
    y = np.zeros(argmax.shape, x.dtype)
    for position, place in enumerate(places(argmax.shape[2:], window, strides)):
        np.copyto(y, image[place], where=argmax == position)
    return y


def _divisor(shape: Ints, window: Ints, strides: Ints, padding: Ints, count_padding: bool) -> Array:
    """Return the divisor of each window: the size of the window, or the number of its pixels inside the image."""
    if count_padding:
        return np.asarray(window[0] * window[1])
    image = padded(np.ones((1, 1, *shape[2:])), padding)
    return _sum_windows(image, window, strides)


def _sum_windows(image: Array, window: Ints, strides: Ints) -> Array:
    """Return the sum of each window of padded images, added position by position."""
    first, *others = places(window_counts(image, window, strides), window, strides)
    total = image[first].copy()
    for place in others:
        total += image[place]
    return total


@reference("avg_pool")
def avg_pool(x: Array, *, window: Ints, strides: Ints, padding: Ints, count_padding: bool) -> Array:
    total = _sum_windows(padded(x, padding), window, strides)
    return total / _divisor(x.shape, window, strides, padding, count_padding).astype(x.dtype)


@reference("avg_pool_gradient")
def avg_pool_gradient(
    dy: Array, *, input_shape: Ints, window: Ints, strides: Ints, padding: Ints, count_padding: bool
) -> Array:
    share = dy / _divisor(input_shape, window, strides, padding, count_padding).astype(dy.dtype)
    image = np.zeros(padded_shape(input_shape, padding), dy.dtype)
    for place in places(dy.shape[2:], window, strides):
        image[place] += share
    return inner(image, padding)
