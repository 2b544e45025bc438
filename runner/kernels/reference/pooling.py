"""Max and average pooling: one pass over the image for every position of the window."""

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.reference.windows import Ints, inner, padded, padded_shape, places, window_counts
from runner.kernels.registry import reference


@reference("max_pool")
def max_pool(x: Array, *, window: Ints, strides: Ints, padding: Ints) -> tuple[Array, Array]:
    image = padded(x, padding, -np.inf)
    first, *others = places(window_counts(image, window, strides), window, strides)
    best = image[first].copy()
    argmax = np.zeros(best.shape, np.int32)
    for position, place in enumerate(others, start=1):
        candidate = image[place]
        # Positions rise, so the last improvement is also the greatest position.
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
    """Return the divisor of each window: its size, or the number of its places inside the image."""
    if count_padding:
        return np.asarray(window[0] * window[1])
    image = padded(np.ones((1, 1, *shape[2:])), padding)
    return _sum_windows(image, window, strides)


def _sum_windows(image: Array, window: Ints, strides: Ints) -> Array:
    """Sum each window of a padded image, position after position."""
    first, *others = places(window_counts(image, window, strides), window, strides)
    total = image[first].copy()
    for place in others:
        total += image[place]
    return total


@reference("avg_pool")
def avg_pool(x: Array, *, window: Ints, strides: Ints, padding: Ints, count_padding: bool) -> Array:
    total = _sum_windows(padded(x, padding), window, strides)
    mean: Array = total / _divisor(x.shape, window, strides, padding, count_padding).astype(x.dtype)
    return mean


@reference("avg_pool_gradient")
def avg_pool_gradient(
    dy: Array, *, input_shape: Ints, window: Ints, strides: Ints, padding: Ints, count_padding: bool
) -> Array:
    share = dy / _divisor(input_shape, window, strides, padding, count_padding).astype(dy.dtype)
    image = np.zeros(padded_shape(input_shape, padding), dy.dtype)
    for place in places(dy.shape[2:], window, strides):
        image[place] += share
    return inner(image, padding)
