"""A matrix product whose weights are rounded where they are used: rounded first."""

from __future__ import annotations

import numpy as np

from runner.kernels.reference.fused_linear import matmul_fused
from runner.kernels.registry import Array, numpy_dtype, reference


@reference("matmul_narrowed")
def matmul_narrowed(
    a: Array,
    b: Array,
    *bias_of: Array,
    transpose_a: bool,
    transpose_b: bool,
    bias: bool,
    relu: bool,
    narrow: str,
    dtype: str,
) -> Array:
    # What is rounded goes on in the dtype of the arithmetic, as a does.
    rounded = np.asarray(b.astype(numpy_dtype(narrow)), a.dtype)
    y: Array = matmul_fused(
        a, rounded, *bias_of, transpose_a=transpose_a, transpose_b=transpose_b, bias=bias, relu=relu, dtype=dtype
    )
    return y
