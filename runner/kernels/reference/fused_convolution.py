"""Convolution with bias, residual and ReLU, and both gradients of a layer: the parts, one after the other."""

from __future__ import annotations

from typing import Any

from runner.kernels.contract import Array
from runner.kernels.reference import activation
from runner.kernels.reference.convolution import conv2d, conv2d_weight_gradient
from runner.kernels.reference.reduction import reduce_sum
from runner.kernels.registry import reference


@reference("conv2d_fused")
def conv2d_fused(x: Array, w: Array, *added: Array, bias: bool, residual: bool, relu: bool, **geometry: Any) -> Array:
    y: Array = conv2d(x, w, **geometry)
    if bias:
        y = y + added[0].reshape(-1, 1, 1)
    if residual:
        y = y + added[-1]
    return activation.relu(y) if relu else y


@reference("conv2d_weight_bias_gradient")
def conv2d_weight_bias_gradient(dy: Array, x: Array, *, dtype: str, **geometry: Any) -> tuple[Array, Array]:
    db: Array = reduce_sum(dy, axes=(0, 2, 3), keepdims=False)
    return conv2d_weight_gradient(dy, x, dtype=dtype, **geometry), db.astype(dtype, copy=False)
