"""Padded images (N, C, H, W) and the places of sliding windows in them; shared by convolution and pooling.

Padding is (top, bottom, left, right), strides and windows are (rows, columns).
"""

import numpy as np

from runner.kernels.contract import Array

Ints = tuple[int, ...]
Place = tuple[slice, slice, slice, slice]


def padded(x: Array, padding: Ints, value: float = 0.0) -> Array:
    """Return images with rows and columns of ``value`` around them."""
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
    """Return the view of padded images without their padding."""
    top, bottom, left, right = padding
    return image[:, :, top : image.shape[2] - bottom, left : image.shape[3] - right]


def window_counts(image: Array, window: Ints, strides: Ints) -> Ints:
    """Return how many windows a padded image holds down and across."""
    rows = (image.shape[2] - window[0]) // strides[0] + 1
    columns = (image.shape[3] - window[1]) // strides[1] + 1
    return rows, columns


def places(counts: Ints, window: Ints, strides: Ints) -> list[Place]:
    """Return, for each position of the window, row by row, its elements in all windows of padded images."""
    return [
        (slice(None), slice(None), _every(row, counts[0], strides[0]), _every(column, counts[1], strides[1]))
        for row in range(window[0])
        for column in range(window[1])
    ]


def _every(start: int, count: int, stride: int) -> slice:
    return slice(start, start + stride * (count - 1) + 1, stride)
