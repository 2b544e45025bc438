"""Matrix multiplication by the BLAS of NumPy, alone or followed by a chain of element-wise operations."""

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.elementwise import computed_in, evaluate, parse
from runner.kernels.memory import numpy_dtype
from runner.kernels.registry import reference


@reference("matmul")
def matmul(a: Array, b: Array, *, transpose_a: bool, transpose_b: bool) -> Array:
    return (a.T if transpose_a else a) @ (b.T if transpose_b else b)


@reference("matmul_elementwise")
def matmul_elementwise(
    a: Array,
    b: Array,
    *operands: Array,
    transpose_a: bool,
    transpose_b: bool,
    dtype: str,
    program: str,
    outputs: tuple[int, ...],
    product: int,
) -> tuple[Array, ...]:
    y: Array = matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    # A product of bfloat16 is rounded, as between separate nodes.
    inputs = [*operands[:product], np.asarray(y.astype(numpy_dtype(dtype)), computed_in(dtype)), *operands[product:]]
    return evaluate(parse(program, len(inputs), outputs), inputs)
