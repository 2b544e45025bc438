"""Element-wise functions and programs, matrix multiplication, reductions, and broadcasting.

NumPy adds elements in the order of their addresses. Sums and means first bring arrays into C order, so that the order
of additions depends only on the shape.
"""

from collections.abc import Callable

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.elementwise import FUNCTIONS, computed_in, evaluate, parse
from runner.kernels.memory import numpy_dtype
from runner.kernels.registry import reference

_FUNCTIONS: dict[str, Callable[..., Array]] = {
    **{op: function for op, (_, function) in FUNCTIONS.items()},
    "pow": lambda x, exponent: np.power(x, exponent),  # attributes are passed by name
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sign": np.sign,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "equal": np.equal,
    "select": np.where,
    "broadcast_to": np.broadcast_to,
}

for _op, _function in _FUNCTIONS.items():
    reference(_op)(_function)


@reference("elementwise")
def elementwise(*inputs: Array, program: str, outputs: tuple[int, ...]) -> tuple[Array, ...]:
    return evaluate(parse(program, len(inputs), outputs), inputs)


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
    y = matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    # A bfloat16 product is rounded before the program reads it, as it would be between separate nodes.
    inputs = [*operands[:product], np.asarray(y.astype(numpy_dtype(dtype)), computed_in(dtype)), *operands[product:]]
    return evaluate(parse(program, len(inputs), outputs), inputs)


@reference("reduce_sum")
def reduce_sum(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
    return np.asarray(x, order="C").sum(axis=axes, keepdims=keepdims, dtype=x.dtype)


@reference("reduce_mean")
def reduce_mean(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
    return np.asarray(x, order="C").mean(axis=axes, keepdims=keepdims, dtype=x.dtype)


@reference("reduce_max")
def reduce_max(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
    return x.max(axis=axes, keepdims=keepdims)


@reference("argmax")
def argmax(x: Array, *, axis: int) -> Array:
    return np.asarray(x.argmax(axis=axis), np.int64)
