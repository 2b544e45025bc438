"""A matrix product with bias and ReLU, and both gradients of a dense layer: the parts, one after the other."""

from __future__ import annotations

from runner.kernels.contract import Array
from runner.kernels.reference import activation
from runner.kernels.reference.linear import matmul
from runner.kernels.reference.reduction import reduce_sum
from runner.kernels.registry import reference


@reference("matmul_fused")
def matmul_fused(
    a: Array, b: Array, *added: Array, transpose_a: bool, transpose_b: bool, bias: bool, relu: bool, dtype: str
) -> Array:
    y: Array = matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    if bias:
        y = y + added[0]
    y = activation.relu(y) if relu else y
    return y.astype(dtype, copy=False)


@reference("matmul_bias_gradient")
def matmul_bias_gradient(x: Array, dy: Array, *, dtype: str) -> tuple[Array, Array]:
    dw: Array = matmul(x, dy, transpose_a=True, transpose_b=False)
    db: Array = reduce_sum(dy, axes=(0,), keepdims=False)
    return dw.astype(dtype, copy=False), db.astype(dtype, copy=False)
