"""Batch normalization and local response normalization across channels, and their gradients."""

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.registry import reference


def _axes(x: Array) -> tuple[int, ...]:
    """Return all axes except axis 1, the channel axis."""
    return tuple(axis for axis in range(x.ndim) if axis != 1)


def _per_channel(vector: Array, x: Array) -> Array:
    """Reshape a (C,) vector so that it broadcasts against x."""
    return vector.reshape(-1, *[1] * (x.ndim - 2))


@reference("batch_norm")
def batch_norm(x: Array, gamma: Array, beta: Array, *, epsilon: float) -> tuple[Array, Array, Array]:
    x = np.asarray(x, order="C")  # NumPy adds elements in the order of their addresses
    mean = x.mean(axis=_axes(x))
    centred = x - _per_channel(mean, x)
    variance = np.square(centred).mean(axis=_axes(x))
    factor = gamma / np.sqrt(variance + epsilon)
    return centred * _per_channel(factor, x) + _per_channel(beta, x), mean, variance


@reference("batch_norm_inference")
def batch_norm_inference(x: Array, gamma: Array, beta: Array, mean: Array, variance: Array, *, epsilon: float) -> Array:
    factor = gamma / np.sqrt(variance + epsilon)
    centred = x - _per_channel(mean, x)
    return centred * _per_channel(factor, x) + _per_channel(beta, x)


@reference("batch_norm_gradient")
def batch_norm_gradient(
    x: Array, gamma: Array, mean: Array, variance: Array, dy: Array, *, epsilon: float
) -> tuple[Array, Array, Array]:
    x, dy = np.asarray(x, order="C"), np.asarray(dy, order="C")
    count = x.size // gamma.size
    inverse_deviation = 1 / np.sqrt(variance + epsilon)
    z = (x - _per_channel(mean, x)) * _per_channel(inverse_deviation, x)
    dbeta = dy.sum(axis=_axes(x))
    dgamma = (dy * z).sum(axis=_axes(x))
    projected = dy - _per_channel(dbeta / count, x) - z * _per_channel(dgamma / count, x)
    return projected * _per_channel(gamma * inverse_deviation, x), dgamma, dbeta


@reference("channel_window_sum")
def channel_window_sum(x: Array, *, size: int) -> Array:
    """Return sums over ``size`` (odd) channels around each channel, added from the lowest to the highest channel."""
    channels = x.shape[1]
    reach = min(size // 2, channels - 1)
    total = np.zeros_like(x)
    for offset in range(-reach, reach + 1):
        first, last = max(0, -offset), min(channels, channels - offset)
        total[:, first:last] += x[:, first + offset : last + offset]
    return total


def _denominator(x: Array, size: int, alpha: float, k: float, divide_by_size: bool) -> Array:
    weight = alpha / size if divide_by_size else alpha
    return k + weight * channel_window_sum(np.square(x), size=size)


@reference("local_response_normalization")
def local_response_normalization(
    x: Array, *, size: int, alpha: float, beta: float, k: float, divide_by_size: bool
) -> Array:
    return x * _denominator(x, size, alpha, k, divide_by_size) ** -beta


@reference("local_response_normalization_gradient")
def local_response_normalization_gradient(
    x: Array, dy: Array, *, size: int, alpha: float, beta: float, k: float, divide_by_size: bool
) -> Array:
    weight = alpha / size if divide_by_size else alpha
    denominator = _denominator(x, size, alpha, k, divide_by_size)
    scaled = dy * denominator**-beta
    through = channel_window_sum(scaled * x / denominator, size=size)
    return scaled - 2 * weight * beta * x * through
