"""Sample inputs of ops: random arrays with a seed, and cases that combine them with attributes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node
from runner.engine.graph.tensor import Tensor

Array = NDArray[Any]
Shape = tuple[int, ...]
Sample = Callable[[np.random.Generator], Array]

PRECISION = "<precision>"
"""Placeholder in attributes for the float dtype under test."""


@dataclass(frozen=True)
class Case:
    """One way to use an op.

    inputs: samples; float64 ones are cast to the dtype under test. orders: how many derivatives exist and are
    checked. tolerance: allowed relative deviation of float32 results from float64 ones.
    """

    inputs: tuple[Sample, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    orders: int = 2
    tolerance: float = 2e-5

    def draw(self, seed: int, dtype: str = "float64") -> list[Array]:
        """Make the input arrays with floats of ``dtype``."""
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
    """Any numbers."""
    return lambda rng: rng.standard_normal(shape)


def single(sample: Sample) -> Sample:
    """The same in float32, independent of the dtype under test."""
    return lambda rng: np.asarray(sample(rng), "float32")


def positive(*shape: int) -> Sample:
    """Numbers within 0.5 and 2."""
    return lambda rng: rng.uniform(0.5, 2.0, shape)


def off_zero(*shape: int) -> Sample:
    """Numbers of either sign, 0.1 or more away from 0."""
    return lambda rng: rng.uniform(0.1, 2.0, shape) * rng.choice([-1.0, 1.0], shape)


def distinct(*shape: int) -> Sample:
    """Numbers that differ from each other by 0.1 or more."""
    return lambda rng: rng.permutation(math.prod(shape)).reshape(shape) * 0.1 - 1.0


def integers(below: int, *shape: int, dtype: str = "int64") -> Sample:
    """Integers within 0 and below - 1."""
    return lambda rng: rng.integers(0, below, shape).astype(dtype)


def booleans(*shape: int) -> Sample:
    """Truth values."""
    return lambda rng: rng.random(shape) < 0.5


def value(number: Any, dtype: str) -> Sample:
    """One fixed array."""
    return lambda rng: np.asarray(number, dtype)


def values(numbers: Any, dtype: str = "float64") -> Sample:
    """These numbers."""
    return lambda rng: np.array(numbers).astype(dtype)


def pairs(numbers: Sequence[float], dtype: str = "float64") -> tuple[Sample, Sample]:
    """Two inputs that pair every number with every number."""
    return values(np.repeat(numbers, len(numbers)).tolist(), dtype), values([*numbers] * len(numbers), dtype)


def few(*shape: int, dtype: str = "float64") -> Sample:
    """Whole numbers within -3 and 2, many of them equal."""
    return lambda rng: rng.integers(-3, 3, shape).astype(dtype)


def spread(*shape: int, scale: float = 20.0, mean: float = 0.0) -> Sample:
    """Normal numbers with this standard deviation and mean."""
    return lambda rng: rng.normal(mean, scale, shape)


def numbered(*shape: int, dtype: str = "float64") -> Sample:
    """0, 1, 2, ... in C order."""
    return lambda rng: np.arange(math.prod(shape)).reshape(shape).astype(dtype)


def but(sample: Sample, **places: Any) -> Sample:
    """A sample with other values at some places. nan, inf: index of that value; at: (index, value)."""

    def draw(rng: np.random.Generator) -> Array:
        array = np.asarray(sample(rng)).copy()
        for name, place in places.items():
            index, number = place if name == "at" else (place, float(name))
            array[index] = number
        return array

    return draw
