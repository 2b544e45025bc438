"""Constants, copies, sums of several tensors, changes of dtype, and rearrangements."""

from functools import reduce
from itertools import accumulate

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.memory import numpy_dtype
from runner.kernels.registry import reference

QUIET = np.uint16(0x0040)
"""The highest mantissa bit of bfloat16: if all exponent bits are ones, it makes the number a NaN."""


@reference("identity")
def identity(x: Array) -> Array:
    return x


@reference("convert")
def convert(x: Array) -> Array:
    return x


@reference("stop_gradient")
def stop_gradient(x: Array) -> Array:
    return x


@reference("fill")
def fill(*, value: float, shape: tuple[int, ...], dtype: str) -> Array:
    return np.full(shape, value, dtype)


@reference("constant")
def constant(*, value: bytes, shape: tuple[int, ...], dtype: str) -> Array:
    little_endian = np.frombuffer(value, np.dtype(dtype).newbyteorder("<"))
    return little_endian.astype(dtype, copy=False).reshape(shape)


@reference("add_n")
def add_n(*terms: Array) -> Array:
    return reduce(np.add, terms)


@reference("cast")
def cast(x: Array, *, dtype: str) -> Array:
    return x.astype(dtype, copy=False)


@reference("truncate_to_bfloat16")
def truncate_to_bfloat16(x: Array) -> Array:
    high = (x.view(np.uint32) >> 16).astype(np.uint16)
    # The bits that distinguish NaN from infinity may all be cut off.
    return np.where(np.isnan(x), high | QUIET, high).view(numpy_dtype("bfloat16"))


@reference("all_reduce")
def all_reduce(*parts: Array, group: str, rank: int) -> Array:
    return reduce(np.add, parts)


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
def block(x: Array, *, begin: tuple[int, ...], size: tuple[int, ...]) -> Array:
    return x[tuple(slice(start, start + extent) for start, extent in zip(begin, size, strict=True))]


@reference("pad")
def pad(x: Array, *, low: tuple[int, ...], high: tuple[int, ...]) -> Array:
    return np.pad(x, tuple(zip(low, high, strict=True)))
