"""Batch normalisation with the ReLU that follows it: the parts, one after the other."""

from __future__ import annotations

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.reference.activation import relu
from runner.kernels.reference.batch_normalization import batch_norm, batch_norm_gradient
from runner.kernels.registry import reference


@reference("batch_norm_relu")
def batch_norm_relu(x: Array, gamma: Array, beta: Array, *, epsilon: float) -> tuple[Array, Array, Array, Array]:
    normalised, mean, variance = batch_norm(x, gamma, beta, epsilon=epsilon)
    y = relu(normalised)
    return y, mean, variance, y > 0


@reference("batch_norm_relu_gradient")
def batch_norm_relu_gradient(
    x: Array, gamma: Array, mean: Array, variance: Array, mask: Array, dy: Array, *, epsilon: float
) -> tuple[Array, Array, Array]:
    passed = np.where(mask, dy, np.zeros((), dy.dtype))
    gradients: tuple[Array, Array, Array] = batch_norm_gradient(x, gamma, mean, variance, passed, epsilon=epsilon)
    return gradients
