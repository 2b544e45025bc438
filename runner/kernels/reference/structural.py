"""Constants, copies, sums of many, and changes of dtype."""

from __future__ import annotations

from functools import reduce

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.memory import numpy_dtype
from runner.kernels.registry import reference

QUIET = np.uint16(0x0040)
"""The highest bit of a bfloat16's mantissa: with it, all ones in the exponent are a NaN and no infinity."""


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
    # What tells a NaN from an infinity may be in the bits that are cut off alone.
    return np.where(np.isnan(x), high | QUIET, high).view(numpy_dtype("bfloat16"))
