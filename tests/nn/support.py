"""Networks for tests: a network builder with its feeds, values for chosen variables, and whole models."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.graph import Graph, NetworkBuilder, Outputs, Tensor, Variables, gradients, ops
from runner.models import Model
from runner.tasks.classification import classifier
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
        """Give a variable a value other than its initial value."""
        self.feeds[self.net.variables[name].tensor] = value

    def values(self, *tensors: Tensor, feeds: Mapping[Tensor, Array] | None = None) -> list[Array]:
        """Compute tensors from the feeds and the variables, which have their initial values unless set."""
        given = {**initial_values(self.net), **self.feeds, **(feeds or {})}
        return evaluate(self.net.graph, tensors, given)

    def value(self, tensor: Tensor) -> Array:
        return self.values(tensor)[0]


def bench(x: Array, *, training: bool = True, step: int = 0, first_index: int = 0, seed: int = 0) -> Bench:
    """Return a bench whose network has input x (N, ...) and the dtype of x; example i has index first_index + i."""
    graph = Graph()
    return copy_onto(graph, Variables(graph, seed=seed), x, training=training, step=step, first_index=first_index)


def copy_onto(
    graph: Graph, variables: Variables, x: Array, *, training: bool, step: int = 0, first_index: int = 0
) -> Bench:
    """Return a bench for another copy of a network, in the same graph and with the same variables."""
    fed = ops.placeholder(graph, x.shape, x.dtype.name, name="x")
    index = ops.placeholder(graph, x.shape[:1], "int64", name="index")
    number = ops.placeholder(graph, (), "int64", name="step")
    net = NetworkBuilder(
        graph, variables, dtype=x.dtype.name, seed=variables.seed, training=training, step=number, index=index
    )
    feeds = {fed: x, index: first_index + np.arange(len(x)), number: np.asarray(step)}
    return Bench(net, fed, feeds)


def initial_values(net: NetworkBuilder) -> dict[Tensor, Array]:
    """Return variable -> the value that its initial assign node commits."""
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


# Whole networks: a model with its loss on random images, and derivatives by finite differences.

STEP = 1e-6


def network(
    model: Model, *shape: int, classes: int = 10, examples: int = 2, training: bool = True
) -> tuple[Bench, Outputs]:
    """Build ``model`` on random float64 images of shape (C, H, W); the label of example i is i modulo ``classes``."""
    rng = np.random.default_rng(7)
    b = bench(rng.standard_normal((examples, *shape)), training=training, step=3)
    labels = ops.placeholder(b.net.graph, (examples,), "int64", name="y")
    b.feeds[labels] = np.arange(examples) % classes
    return b, classifier(model, classes)(b.net, {"x": b.x, "y": labels})


def parameter_count(b: Bench) -> int:
    return sum(variable.spec.size for variable in b.net.variables.trainable)


def multiply_adds(b: Bench) -> int:
    """Return the multiply-adds of convolutions and matrix products for one example."""
    graph = b.net.graph
    total = 0
    for node in graph:
        if node.op == "conv2d":
            total += node.outputs[0].size * math.prod(graph.spec(node.inputs[1]).shape[1:])
        elif node.op == "matmul":
            total += node.outputs[0].size * graph.spec(node.inputs[0]).shape[1]
    return total // len(b.feeds[b.x])


def kinds(b: Bench) -> dict[str, str]:
    """Return layer name -> kind of every layer that adds nodes, in order."""
    stamps = (b.net.graph.nodes[tensor.node].layer for tensor in b.net.layer_outputs.values())
    return {stamp.name: stamp.kind for stamp in stamps if stamp is not None}


def assert_trainable(b: Bench, outputs: Outputs) -> None:
    """Add the gradient of the summed loss with respect to every parameter; require the parameter's shape and dtype."""
    graph = b.net.graph
    variables = b.net.variables.trainable
    found = gradients(graph, [ops.reduce_sum(graph, outputs.losses)], [variable.tensor for variable in variables])
    specs = {v.name: None if g is None else graph.spec(g) for v, g in zip(variables, found, strict=True)}
    assert specs == {variable.name: variable.spec for variable in variables}


def assert_gradients(b: Bench, outputs: Outputs) -> None:
    """Check the gradients with respect to x and all parameters against finite differences along a random direction.

    The gradients are those of the summed loss. The step is so short that no ReLU and no maximum changes its branch.
    """
    graph = b.net.graph
    total = ops.reduce_sum(graph, outputs.losses)
    sources = [b.x, *(variable.tensor for variable in b.net.variables.trainable)]
    found = gradients(graph, [total], sources)
    assert all(gradient is not None for gradient in found), "every parameter matters to the loss"
    given = {**initial_values(b.net), **b.feeds}
    rng = np.random.default_rng(8)
    # Move away from the initial values: biases and betas of zero are a special case.
    point = {
        source: value + 0.1 * rng.standard_normal(value.shape) for source, value in given.items() if source in sources
    }
    direction = {source: rng.standard_normal(value.shape) for source, value in point.items()}

    def moved(distance: float) -> dict[Tensor, Array]:
        return {source: value + distance * direction[source] for source, value in point.items()}

    def loss(distance: float) -> float:
        return float(evaluate(graph, [total], {**given, **moved(distance)})[0])

    values = evaluate(graph, [gradient for gradient in found if gradient is not None], {**given, **point})
    analytic = sum(float(np.vdot(value, direction[source])) for source, value in zip(sources, values, strict=True))
    numeric = (loss(STEP) - loss(-STEP)) / (2 * STEP)
    magnitude = sum(float(np.abs(v * direction[s]).sum()) for s, v in zip(sources, values, strict=True))
    assert abs(analytic - numeric) < 1e-7 * magnitude, f"autodiff {analytic}, differences {numeric}"
