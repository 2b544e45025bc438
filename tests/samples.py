"""Sample inputs of ops: functions that draw arrays, and cases that combine samples with attributes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.graph import Graph, Node, Tensor

Array = NDArray[Any]
Shape = tuple[int, ...]
Sample = Callable[[np.random.Generator], Array]

PRECISION = "<precision>"
"""Placeholder in attributes for the float dtype under test."""


@dataclass(frozen=True)
class Case:
    """One way to use an op.

    inputs: samples; float64 samples are cast to the dtype under test. orders: number of derivatives that exist and are
    checked. tolerance: allowed relative deviation of float32 results from float64 results.
    """

    inputs: tuple[Sample, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    orders: int = 2
    tolerance: float = 2e-5

    def draw(self, seed: int, dtype: str = "float64") -> list[Array]:
        """Draw the input arrays, with floats of ``dtype``."""
        rng = np.random.default_rng(seed)
        arrays = [np.asarray(sample(rng)) for sample in self.inputs]
        return [a.astype(dtype) if a.dtype == np.float64 else a for a in arrays]

    def build(self, op: str, dtype: str = "float64") -> tuple[Graph, list[Tensor], Node]:
        """Return a graph with a placeholder per input and one node of the op."""
        graph = Graph()
        placeholders = [
            graph.add("placeholder", (), {"shape": a.shape, "dtype": a.dtype.name}, name=f"input_{i}")[0]
            for i, a in enumerate(self.draw(0, dtype))
        ]
        attributes = {k: dtype if v == PRECISION else v for k, v in self.attributes.items()}
        return graph, placeholders, graph.add(op, placeholders, attributes)


def normal(*shape: int) -> Sample:
    """Return a sample of normal numbers."""
    return lambda rng: rng.standard_normal(shape)


def single(sample: Sample) -> Sample:
    """Return the same sample in float32, independent of the dtype under test."""
    return lambda rng: np.asarray(sample(rng), "float32")


def positive(*shape: int) -> Sample:
    """Return a sample of numbers from 0.5 to 2."""
    return lambda rng: rng.uniform(0.5, 2.0, shape)


def off_zero(*shape: int) -> Sample:
    """Return a sample of positive and negative numbers whose magnitude is at least 0.1."""
    return lambda rng: rng.uniform(0.1, 2.0, shape) * rng.choice([-1.0, 1.0], shape)


def distinct(*shape: int) -> Sample:
    """Return a sample of numbers that differ from each other by at least 0.1."""
    return lambda rng: rng.permutation(math.prod(shape)).reshape(shape) * 0.1 - 1.0


def integers(below: int, *shape: int, dtype: str = "int64") -> Sample:
    """Return a sample of integers from 0 to below - 1."""
    return lambda rng: rng.integers(0, below, shape).astype(dtype)


def permuted(below: int, count: int) -> Sample:
    """Return a sample of ``count`` different integers from 0 to below - 1."""
    return lambda rng: rng.permutation(below)[:count].astype("int64")


def booleans(*shape: int) -> Sample:
    """Return a sample of truth values."""
    return lambda rng: rng.random(shape) < 0.5


def value(number: Any, dtype: str) -> Sample:
    """Return a sample that is one fixed array."""
    return lambda rng: np.asarray(number, dtype)


def values(numbers: Any, dtype: str = "float64") -> Sample:
    """Return a sample of these numbers."""
    return lambda rng: np.array(numbers).astype(dtype)


def pairs(numbers: Sequence[float], dtype: str = "float64") -> tuple[Sample, Sample]:
    """Return two samples that combine every number with every number."""
    return values(np.repeat(numbers, len(numbers)).tolist(), dtype), values([*numbers] * len(numbers), dtype)


def few(*shape: int, dtype: str = "float64") -> Sample:
    """Return a sample of integers from -3 to 2, many of them equal."""
    return lambda rng: rng.integers(-3, 3, shape).astype(dtype)


def spread(*shape: int, scale: float = 20.0, mean: float = 0.0) -> Sample:
    """Return a sample of normal numbers with this standard deviation and mean."""
    return lambda rng: rng.normal(mean, scale, shape)


def numbered(*shape: int, dtype: str = "float64") -> Sample:
    """Return a sample with 0, 1, 2, ... in C order."""
    return lambda rng: np.arange(math.prod(shape)).reshape(shape).astype(dtype)


def but(sample: Sample, **places: Any) -> Sample:
    """Return a sample with some values replaced. nan, inf: index that gets this value; at: (index, value)."""

    def draw(rng: np.random.Generator) -> Array:
        array = np.asarray(sample(rng)).copy()
        for name, place in places.items():
            index, number = place if name == "at" else (place, float(name))
            array[index] = number
        return array

    return draw
