"""Rearrangements. Where NumPy can, the output is a view of the input."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from runner.kernels.contract import Array
from runner.kernels.registry import reference


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
