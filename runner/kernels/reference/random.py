"""Draws from counter-based streams, made in float64 and then cast, so that every precision has the same draws."""

import math

import numpy as np

from runner.kernels import philox
from runner.kernels.contract import Array
from runner.kernels.registry import reference


@reference("random_uniform")
def random_uniform(*, shape: tuple[int, ...], dtype: str, seed: int, key: str, low: float, high: float) -> Array:
    draws = philox.uniform(philox.key(seed, key), np.zeros(1, np.int64), math.prod(shape))[0]
    scaled: Array = low + (high - low) * draws
    return scaled.reshape(shape).astype(dtype)


@reference("random_normal")
def random_normal(*, shape: tuple[int, ...], dtype: str, seed: int, key: str, mean: float, stddev: float) -> Array:
    scaled = np.empty(math.prod(shape), dtype)
    for place, draws in philox.normal_parts(philox.key(seed, key), scaled.size):
        scaled[place] = mean + stddev * draws
    return scaled.reshape(shape)


@reference("dropout_mask")
def dropout_mask(
    step: Array, index: Array, *, shape: tuple[int, ...], dtype: str, rate: float, seed: int, key: str, first: int
) -> Array:
    draws = philox.uniform(philox.key(seed, key), index, math.prod(shape[1:]), int(step), first)
    return np.where(draws < rate, 0.0, 1.0 / (1.0 - rate)).astype(dtype).reshape(shape)
