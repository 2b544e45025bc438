"""Local response normalization across channels, and its gradient."""

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.registry import reference


@reference("channel_window_sum")
def channel_window_sum(x: Array, *, size: int) -> Array:
    """Add the neighbours one offset after another, from the lowest channel to the highest."""
    channels = x.shape[1]
    reach = min(size // 2, channels - 1)
    total = np.zeros_like(x)
    for offset in range(-reach, reach + 1):
        first, last = max(0, -offset), min(channels, channels - offset)
        total[:, first:last] += x[:, first + offset : last + offset]
    return total


def _denominator(x: Array, size: int, alpha: float, k: float, divide_by_size: bool) -> Array:
    weight = alpha / size if divide_by_size else alpha
    denominator: Array = k + weight * channel_window_sum(np.square(x), size=size)
    return denominator


@reference("local_response_normalization")
def local_response_normalization(
    x: Array, *, size: int, alpha: float, beta: float, k: float, divide_by_size: bool
) -> Array:
    y: Array = x * _denominator(x, size, alpha, k, divide_by_size) ** -beta
    return y


@reference("local_response_normalization_gradient")
def local_response_normalization_gradient(
    x: Array, dy: Array, *, size: int, alpha: float, beta: float, k: float, divide_by_size: bool
) -> Array:
    weight = alpha / size if divide_by_size else alpha
    denominator = _denominator(x, size, alpha, k, divide_by_size)
    scaled = dy * denominator**-beta
    through = channel_window_sum(scaled * x / denominator, size=size)
    dx: Array = scaled - 2 * weight * beta * x * through
    return dx
