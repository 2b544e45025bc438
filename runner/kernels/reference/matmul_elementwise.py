"""A matrix product that goes into a chain of element-wise operations: one after the other."""

from __future__ import annotations

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.elementwise import computed_in, evaluate, parse
from runner.kernels.reference.fused_linear import matmul_fused
from runner.kernels.registry import reference


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
    y = matmul_fused(a, b, transpose_a=transpose_a, transpose_b=transpose_b, bias=False, relu=False, dtype=dtype)
    # A product of bfloat16 is rounded, as it would be on its way from node to node.
    inputs = [*operands[:product], np.asarray(y, computed_in(dtype)), *operands[product:]]
    return evaluate(parse(program, len(inputs), outputs), inputs)
