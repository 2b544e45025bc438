"""Small networks for tests: a builder over fed inputs, and their values under chosen variables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.network import NetworkBuilder
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.variables import Variables
from tests.oracles import evaluate

Array = NDArray[Any]


@dataclass
class Bench:
    """One copy of a network under test: its builder, its image input and its feeds."""

    net: NetworkBuilder
    x: Tensor
    feeds: dict[Tensor, Array] = field(default_factory=dict)

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        return self.net.graph.spec(tensor).shape

    def set(self, name: str, value: Array) -> None:
        """Give a variable a value other than its initial one."""
        self.feeds[self.net.variables[name].tensor] = value

    def values(self, *tensors: Tensor, feeds: Mapping[Tensor, Array] | None = None) -> list[Array]:
        """Compute tensors from the feeds and the variables, which have their initial values unless set."""
        given = {**initial_values(self.net), **self.feeds, **(feeds or {})}
        return evaluate(self.net.graph, tensors, given)

    def value(self, tensor: Tensor) -> Array:
        return self.values(tensor)[0]


def bench(x: Array, *, training: bool = True, step: int = 0, first_index: int = 0, seed: int = 0) -> Bench:
    """Return a builder over the input x (N, ...), in its dtype; example i has index first_index + i."""
    graph = Graph()
    return copy_onto(graph, Variables(graph, seed=seed), x, training=training, step=step, first_index=first_index)


def copy_onto(
    graph: Graph, variables: Variables, x: Array, *, training: bool, step: int = 0, first_index: int = 0
) -> Bench:
    """Return another copy of a network in the same graph, over the same variables."""
    fed = ops.placeholder(graph, x.shape, x.dtype.name, name="x")
    index = ops.placeholder(graph, x.shape[:1], "int64", name="index")
    number = ops.placeholder(graph, (), "int64", name="step")
    net = NetworkBuilder(
        graph,
        variables,
        dtype=x.dtype.name,
        seed=variables.seed,
        training=training,
        step=number,
        index=index,
    )
    feeds = {fed: x, index: first_index + np.arange(len(x)), number: np.asarray(step)}
    return Bench(net, fed, feeds)


def initial_values(net: NetworkBuilder) -> dict[Tensor, Array]:
    """Return the value that each variable's initial assign commits."""
    variables = list(net.variables)
    sources = [net.graph.nodes[variable.initial].inputs[1] for variable in variables]
    values = evaluate(net.graph, sources, {})
    return {variable.tensor: value for variable, value in zip(variables, values, strict=True)}


def normal(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def images(*shape: int) -> Array:
    """Return zeros, for tests in which only shapes matter."""
    return np.zeros(shape)


def names(variables: Sequence[Any]) -> list[str]:
    return [variable.name for variable in variables]
