"""A matrix product whose weights are rounded where they are used: rounded first."""

from __future__ import annotations

from typing import Any

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.memory import numpy_dtype
from runner.kernels.reference.fused_linear import matmul_fused
from runner.kernels.registry import reference


@reference("matmul_narrowed")
def matmul_narrowed(a: Array, b: Array, *bias_of: Array, narrow: str, **how: Any) -> Array:
    # What is rounded goes on in the dtype of the arithmetic, as a does.
    rounded = np.asarray(b.astype(numpy_dtype(narrow)), a.dtype)
    y: Array = matmul_fused(a, rounded, *bias_of, **how)
    return y
