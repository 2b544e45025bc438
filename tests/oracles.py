"""Reference results for tests: an interpreter of graphs, and derivatives by finite differences."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.graph import Graph, Node, Tensor, TensorSpec, gradients
from runner.engine.run.kernel_table import load_kernels
from runner.kernels.functions import results
from runner.kernels.memory import numpy_dtype
from tests.kernels import harness

Array = NDArray[Any]
Values = dict[Tensor, Array]

STEP = 1e-3
"""Step of the difference quotients, whose error is of the order STEP ** 4."""
TOLERANCE = 1e-8
"""Allowed deviation of a derivative, relative to the sum of the magnitudes of its terms."""


def evaluate(graph: Graph, fetches: Sequence[Tensor], feeds: Mapping[Tensor, Array]) -> list[Array]:
    """Compute the fetched tensors with the reference kernels, node by node in graph order.

    ``feeds`` holds the values of placeholders, and optionally of other tensors. Every array is made read-only, so that
    a kernel that writes to its inputs fails, and the shape and dtype of every output are checked.
    """
    values: Values = {tensor: _frozen(array) for tensor, array in feeds.items()}
    needed = _needed(graph, fetches, values)
    for node in graph:
        if node.name in needed:
            outputs = run_node(graph, node, [values[tensor] for tensor in node.inputs])
            computed = zip(node.tensors, outputs, strict=True)
            values.update((tensor, array) for tensor, array in computed if tensor not in feeds)
    return [values[tensor] for tensor in fetches]


def run_node(graph: Graph, node: Node, inputs: Sequence[Array]) -> list[Array]:
    """Run the reference kernel of a node, and fail if an output has another shape or dtype than the node declares.

    For an ``assign`` node, return the value that it writes to its variable.
    """
    if node.op == "assign":
        return [inputs[1]]
    kernel = load_kernels().find(node.op, "cpu", "numpy")
    if kernel.function is None:
        ran = harness.run(kernel, node.attributes, graph.input_specs(node), node.outputs, inputs)
        return [_frozen(output) for output in ran.outputs]
    found = results(kernel.function, inputs, node.attributes)
    return [_output(node, spec, value) for spec, value in zip(node.outputs, found, strict=True)]


def _output(node: Node, spec: TensorSpec, value: Any) -> Array:
    """Return an output of a NumPy function as a kernel stores it: a copy in C order, and rounded if it is bfloat16."""
    array, dtype = np.array(value, order="C"), numpy_dtype(spec.dtype)
    if spec.dtype == "bfloat16" and array.dtype == np.float32:
        array = array.astype(dtype)
    assert (array.shape, array.dtype) == (spec.shape, dtype), f"{node.name}: {array.dtype}{array.shape} for {spec}"
    return _frozen(array)


def _frozen(array: Array) -> Array:
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def _needed(graph: Graph, fetches: Sequence[Tensor], given: Mapping[Tensor, Array]) -> set[str]:
    waiting = [tensor for tensor in fetches if tensor not in given]
    needed: set[str] = set()
    while waiting:
        node = graph.nodes[waiting.pop().node]
        if node.name not in needed:
            needed.add(node.name)
            waiting.extend(tensor for tensor in node.inputs if tensor not in given)
    return needed


def directional_derivative(function: Callable[[float], float]) -> float:
    """Return the derivative of ``function`` at 0 by central differences of fourth order."""
    near = function(STEP) - function(-STEP)
    far = function(2 * STEP) - function(-2 * STEP)
    return (8 * near - far) / (12 * STEP)


def assert_gradients(
    graph: Graph,
    ys: Sequence[Tensor],
    xs: Sequence[Tensor],
    feeds: Mapping[Tensor, Array],
    rng: np.random.Generator,
    order: int = 1,
) -> None:
    """Compare autodiff with finite differences along a random direction, for derivatives up to ``order``.

    xs: float64 tensors that are fed. The differentiated function is the sum of <r, y> over ys with random r. For the
    second order, it is the sum of <s, dx> over the gradients dx with random s, as a function of all xs and r.
    """
    weights = {_placeholder_like(graph, y): _random_like(graph, y, rng) for y in ys}
    feeds = {**feeds, **weights}
    found = gradients(graph, ys, xs, list(weights))
    _assert_directional(graph, ys, weights, dict(zip(xs, found, strict=True)), feeds, rng)
    following = [gradient for gradient in found if gradient is not None]
    if order > 1 and following:
        assert_gradients(graph, following, [*xs, *weights], feeds, rng, order - 1)


def _assert_directional(
    graph: Graph,
    ys: Sequence[Tensor],
    weights: Mapping[Tensor, Array],
    found: Mapping[Tensor, Tensor | None],
    feeds: Mapping[Tensor, Array],
    rng: np.random.Generator,
) -> None:
    """Compare the gradient of the sum of <weight, y> over ys with a difference quotient along a random direction."""
    direction = {x: rng.uniform(-1, 1, graph.spec(x).shape) for x in found}

    def moved(distance: float) -> float:
        shifted = {**feeds, **{x: feeds[x] + distance * direction[x] for x in found}}
        values = evaluate(graph, ys, shifted)
        return sum(float(np.vdot(weight, y)) for weight, y in zip(weights.values(), values, strict=True))

    existing = {x: gradient for x, gradient in found.items() if gradient is not None}
    values = evaluate(graph, list(existing.values()), feeds)
    terms = [value * direction[x] for x, value in zip(existing, values, strict=True)]
    analytic = sum(float(term.sum()) for term in terms)
    magnitude = 1.0 + abs(moved(0.0)) + sum(float(np.abs(term).sum()) for term in terms)
    numeric = directional_derivative(moved)
    assert abs(analytic - numeric) <= TOLERANCE * magnitude, f"autodiff {analytic}, differences {numeric}"


def _placeholder_like(graph: Graph, tensor: Tensor) -> Tensor:
    spec = graph.spec(tensor)
    return graph.add("placeholder", (), {"shape": spec.shape, "dtype": spec.dtype}, name="weight")[0]


def _random_like(graph: Graph, tensor: Tensor, rng: np.random.Generator) -> Array:
    return rng.uniform(-1, 1, graph.spec(tensor).shape)
