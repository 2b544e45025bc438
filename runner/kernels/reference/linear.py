"""Matrix multiplication, by the BLAS that NumPy was built with."""

from __future__ import annotations

from runner.kernels.contract import Array
from runner.kernels.registry import reference


@reference("matmul")
def matmul(a: Array, b: Array, *, transpose_a: bool, transpose_b: bool) -> Array:
    return (a.T if transpose_a else a) @ (b.T if transpose_b else b)
