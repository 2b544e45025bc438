"""Reductions over axes, and broadcasting.

NumPy adds in the order of memory, so arrays are first laid out in C order: the order of additions is then a
function of the shape alone.
"""

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.registry import reference


@reference("reduce_sum")
def reduce_sum(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
    total: Array = np.asarray(x, order="C").sum(axis=axes, keepdims=keepdims, dtype=x.dtype)
    return total


@reference("reduce_mean")
def reduce_mean(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
    mean: Array = np.asarray(x, order="C").mean(axis=axes, keepdims=keepdims, dtype=x.dtype)
    return mean


@reference("reduce_max")
def reduce_max(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
    largest: Array = x.max(axis=axes, keepdims=keepdims)
    return largest


@reference("argmax")
def argmax(x: Array, *, axis: int) -> Array:
    position: Array = x.argmax(axis=axis)
    return np.asarray(position, np.int64)


@reference("broadcast_to")
def broadcast_to(x: Array, *, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(x, shape)
