"""Initial values as graph nodes: pure functions of the seed and of ``key``, the unsharded name of the variable."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor, TensorSpec


class Initializer(Protocol):
    """A rule for the initial value of a variable."""

    def build(self, graph: Graph, spec: TensorSpec, *, seed: int, key: str) -> Tensor:
        """Add nodes that compute the whole, unsharded initial value."""


@dataclass(frozen=True)
class Constant:
    """The initializer that sets every element to ``value``."""

    value: float = 0.0

    def build(self, graph: Graph, spec: TensorSpec, *, seed: int, key: str) -> Tensor:
        """Add a fill node; seed and key are not used."""
        return ops.fill(graph, self.value, spec.shape, spec.dtype)


@dataclass(frozen=True)
class Normal:
    """The initializer that draws each element independently from a normal distribution."""

    stddev: float
    mean: float = 0.0

    def build(self, graph: Graph, spec: TensorSpec, *, seed: int, key: str) -> Tensor:
        """Add a random_normal node."""
        return ops.random_normal(graph, spec.shape, spec.dtype, seed=seed, key=key, mean=self.mean, stddev=self.stddev)


@dataclass(frozen=True)
class Uniform:
    """The initializer that draws each element independently and uniformly from [low, high)."""

    low: float
    high: float

    def build(self, graph: Graph, spec: TensorSpec, *, seed: int, key: str, part: Sequence[int] = ()) -> Tensor:
        """Add a random_uniform node. part: see ``random_uniform``; () for the whole initial value."""
        return ops.random_uniform(
            graph, spec.shape, spec.dtype, seed=seed, key=key, low=self.low, high=self.high, part=part
        )


def he_normal(fan: int) -> Normal:
    """Return the normal initializer with variance 2 / fan (He et al. 2015), for layers followed by ReLU.

    fan: inputs per output (eq. 10, preserves the scale of activations) or outputs per input (eq. 14, for gradients).
    """
    return Normal((2.0 / fan) ** 0.5)


def lecun_normal(fan_in: int) -> Normal:
    """Return the normal initializer with variance 1 / fan_in (LeCun et al. 1998, "Efficient BackProp", eq. 16)."""
    return Normal((1.0 / fan_in) ** 0.5)
