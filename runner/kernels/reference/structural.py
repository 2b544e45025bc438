"""Constants, random draws, copies, sums of several tensors, changes of dtype, and rearrangements.

Random draws come from counter-based streams. Draws are computed in float64 and cast to the dtype of the result.
"""

import math
from functools import reduce
from itertools import accumulate
from typing import Any

import numpy as np

from runner.kernels import philox
from runner.kernels.contract import Array
from runner.kernels.memory import numpy_dtype
from runner.kernels.registry import reference

Ints = tuple[int, ...]

_DRAWS_AT_ONCE = 1 << 16
"""The number of uniform draws per block, small enough that the working arrays stay in the CPU cache."""

QUIET = np.uint16(0x0040)
"""The highest mantissa bit of bfloat16. A value with this bit and all exponent bits set is NaN."""


for _op in ("identity", "convert", "stop_gradient"):
    reference(_op)(lambda x: x)


@reference("fill")
def fill(*, value: float, shape: tuple[int, ...], dtype: str) -> Array:
    return np.full(shape, value, dtype)


@reference("constant")
def constant(*, value: bytes, shape: tuple[int, ...], dtype: str) -> Array:
    little_endian = np.frombuffer(value, np.dtype(dtype).newbyteorder("<"))
    return little_endian.astype(dtype, copy=False).reshape(shape)


@reference("add_n")
@reference("all_reduce")
def add_n(*terms: Array, **attributes: Any) -> Array:
    return reduce(np.add, terms)


@reference("cast")
def cast(x: Array, *, dtype: str) -> Array:
    return x.astype(dtype, copy=False)


@reference("truncate_to_bfloat16")
def truncate_to_bfloat16(x: Array) -> Array:
    high = (x.view(np.uint32) >> 16).astype(np.uint16)
    # Truncation may remove all bits that distinguish a NaN from an infinity.
    return np.where(np.isnan(x), high | QUIET, high).view(numpy_dtype("bfloat16"))


@reference("reshape")
def reshape(x: Array, *, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


@reference("transpose")
def transpose(x: Array, *, perm: tuple[int, ...]) -> Array:
    return x.transpose(perm)


@reference("concat")
def concat(*parts: Array, axis: int) -> Array:
    return np.concatenate(parts, axis)


@reference("split")
def split(x: Array, *, axis: int, sizes: tuple[int, ...]) -> tuple[Array, ...]:
    return tuple(np.split(x, list(accumulate(sizes))[:-1], axis))


@reference("slice")
def block(x: Array, *, begin: Ints, size: Ints, steps: Ints) -> Array:
    return x[_places(begin, size, steps)]


@reference("slice_gradient")
def block_gradient(dy: Array, *, input_shape: Ints, begin: Ints, steps: Ints) -> Array:
    dx = np.zeros(input_shape, dy.dtype)
    dx[_places(begin, dy.shape, steps)] = dy
    return dx


def _places(begin: Ints, size: Ints, steps: Ints) -> tuple[slice, ...]:
    """Return the slices that select ``size`` elements from ``begin`` on, ``steps`` apart."""
    ends = [first + count * step for first, count, step in zip(begin, size, steps, strict=True)]
    # A slice that reaches element 0 by negative steps has no end: -1 would be the last element.
    return tuple(slice(b, e if e >= 0 else None, s) for b, e, s in zip(begin, ends, steps, strict=True))


@reference("pad")
def pad(x: Array, *, low: tuple[int, ...], high: tuple[int, ...]) -> Array:
    return np.pad(x, tuple(zip(low, high, strict=True)))


@reference("random_uniform")
def random_uniform(
    *, shape: tuple[int, ...], dtype: str, seed: int, key: str, low: float, high: float, part: Ints = ()
) -> Array:
    drawn = np.empty(math.prod(shape), dtype)
    stream, index = philox.key(seed, key), np.zeros(1, np.int64)
    # Without ``part``, any length of rows gives the same draws; short rows keep the working arrays small.
    columns, stride, first = part or (_DRAWS_AT_ONCE, _DRAWS_AT_ONCE, 0)
    rows, at_once = -(-drawn.size // columns), max(1, _DRAWS_AT_ONCE // stride)
    for begin in range(0, rows, at_once):
        count = min(at_once, rows - begin)
        needed = columns if count == 1 else count * stride
        draws = philox.uniform(stream, index, needed, first=begin * stride + first).reshape(count, -1)[:, :columns]
        target = drawn[begin * columns : (begin + count) * columns]
        target[:] = (low + (high - low) * draws.ravel()[: len(target)]).astype(dtype)
    return drawn.reshape(shape)


@reference("random_normal")
def random_normal(*, shape: tuple[int, ...], dtype: str, seed: int, key: str, mean: float, stddev: float) -> Array:
    scaled = np.empty(math.prod(shape), dtype)
    for place, draws in philox.normal_parts(philox.key(seed, key), scaled.size):
        scaled[place] = mean + stddev * draws
    return scaled.reshape(shape)


@reference("uniform_rows")
def uniform_rows(step: Array, index: Array, *, shape: tuple[int, ...], dtype: str, seed: int, key: str) -> Array:
    draws = philox.uniform(philox.key(seed, key), index, math.prod(shape[1:]), int(step))
    return draws.astype(dtype).reshape(shape)


@reference("dropout_mask")
def dropout_mask(
    step: Array, index: Array, *, shape: tuple[int, ...], dtype: str, rate: float, seed: int, key: str, first: int
) -> Array:
    draws = philox.uniform(philox.key(seed, key), index, math.prod(shape[1:]), int(step), first)
    return np.where(draws < rate, 0.0, 1.0 / (1.0 - rate)).astype(dtype).reshape(shape)
