"""Convolution as matrix multiplication: every example's windows are laid out as columns (im2col).

Each example and group is a separate matrix product, so the result of an example does not depend on other examples,
and the weight gradient is summed example by example. Examples are processed in runs whose columns fit into the cache
of a CPU; the length of a run changes no result.

Letters: G groups, N examples, K = C/G * R * S values in a window, P = H' * W' windows, O outputs.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from runner.kernels.contract import Array
from runner.kernels.reference.windows import Ints, inner, padded, padded_shape, places
from runner.kernels.registry import reference

_RUN_BYTES = 1 << 18


def _runs(columns: Ints, itemsize: int) -> Iterator[slice]:
    """Cut the examples of columns (N, ...) into consecutive runs of about ``_RUN_BYTES``, one at least."""
    length = max(1, _RUN_BYTES // max(1, math.prod(columns[1:]) * itemsize))
    for start in range(0, columns[0], length):
        yield slice(start, start + length)


def _windows(x: Array, window: Ints, strides: Ints, padding: Ints, groups: int) -> Array:
    """Return a view of all windows, (N, G, C/G, R, S, H', W')."""
    image = padded(x, padding)
    grouped = image.reshape(len(image), groups, image.shape[1] // groups, *image.shape[2:])
    every = sliding_window_view(grouped, window, axis=(3, 4))[:, :, :, :: strides[0], :: strides[1]]
    return every.transpose(0, 1, 2, 5, 6, 3, 4)


def _columns_shape(examples: int, weight_shape: Ints, groups: int, counts: Ints) -> Ints:
    """Return (N, G, K, P)."""
    return examples, groups, math.prod(weight_shape[1:]), math.prod(counts)


@reference("conv2d")
def conv2d(x: Array, w: Array, *, strides: Ints, padding: Ints, groups: int) -> Array:
    windows = _windows(x, w.shape[2:], strides, padding, groups)
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
    dy: Array, x: Array, *, weight_shape: Ints, strides: Ints, padding: Ints, groups: int, dtype: str
) -> Array:
    windows = _windows(x, weight_shape[2:], strides, padding, groups)
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
    dy: Array, w: Array, *, input_shape: Ints, strides: Ints, padding: Ints, groups: int
) -> Array:
    window, counts = w.shape[2:], dy.shape[2:]
    shape = _columns_shape(len(dy), w.shape, groups, counts)
    filters = w.reshape(groups, len(w) // groups, shape[2]).swapaxes(-1, -2)
    outputs = dy.reshape(len(dy), groups, len(w) // groups, shape[3])
    image = np.zeros(padded_shape(input_shape, padding), dy.dtype)
    for run in _runs(shape, dy.itemsize):
        columns = np.matmul(filters, outputs[run])
        by_position = columns.reshape(len(columns), input_shape[1], math.prod(window), *counts)
        for position, place in enumerate(places(counts, window, strides)):
            image[run][place] += by_position[:, :, position]
    return inner(image, padding)
