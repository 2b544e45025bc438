"""Random graphs of small tensors, with several outputs, shared inputs, control edges and random devices."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from runner.engine.graph import Graph, Tensor, ops, worker_device

SIZE = 4


@dataclass(frozen=True)
class Sample:
    """A graph, values of its placeholders and variables, tensors to fetch, and the number of devices that it uses."""

    graph: Graph
    feeds: dict[Tensor, NDArray[Any]] = field(repr=False)
    fetches: list[Tensor]
    devices: int


@st.composite
def samples(draw: st.DrawFn, *, max_devices: int = 4, free: bool = True) -> Sample:
    """Draw a graph of up to 24 nodes. free: whether some nodes have no device."""
    graph = Graph()
    devices = draw(st.integers(1, max_devices))
    places = [worker_device(k) for k in range(devices)] + ([""] if free else [])
    tensors: list[Tensor] = []
    for k in range(draw(st.integers(1, 2))):
        with graph.device(draw(st.sampled_from(places))):
            tensors.append(ops.placeholder(graph, (SIZE,), "float64", name=f"x{k}"))
    feeds = {x: np.linspace(-1.0, 1.0 + k, SIZE) for k, x in enumerate(tensors)}
    for _ in range(draw(st.integers(1, 12))):
        controls = draw(st.lists(st.sampled_from(sorted(graph.nodes)), max_size=2, unique=True))
        with graph.device(draw(st.sampled_from(places))), graph.control_dependencies(controls):
            tensors.append(_drawn_node(draw, graph, tensors, places))
    fetches = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=4, unique=True))
    return Sample(graph, feeds, fetches, devices)


def _drawn_node(draw: st.DrawFn, graph: Graph, tensors: list[Tensor], places: list[str]) -> Tensor:
    a, b, c = (draw(st.sampled_from(tensors)) for _ in range(3))
    operands = {"add": [a, b], "mul": [a, b], "tanh": [a], "add_n": [a, b, c], "swap": [a]}
    kind = draw(st.sampled_from([*operands]))
    if kind != "swap":
        return graph.add(kind, operands[kind])[0]
    # One node has two outputs, which another node concatenates, perhaps on another device.
    low, high = ops.split(graph, a, 0, (1, SIZE - 1))
    with graph.device(draw(st.sampled_from(places))):
        return ops.concat(graph, [high, low], axis=0)


IMAGE, MATRIX, VECTOR, SCALAR = (2, 3, 4, 4), (2, 3), (3,), ()
FILTERS = (3, 3, 3, 3)
SQUARE = (3, 3)
SHAPES = (IMAGE, MATRIX, VECTOR, SCALAR, FILTERS, SQUARE)
GEOMETRY: dict[str, Any] = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}


@st.composite
def training_samples(draw: st.DrawFn, *, dtype: str = "float64", max_devices: int = 2, controls: bool = True) -> Sample:
    """Draw a graph of layers, gradients and updates: patterns that passes rewrite, and nodes that prevent a rewrite.

    controls: whether some nodes wait for other nodes.
    """
    devices = draw(st.integers(1, max_devices))
    sketch = _Sketch(draw, Graph(), dtype, controls)
    with sketch.graph.device(worker_device(0)):
        for shape in SHAPES:
            sketch.known[shape] = [ops.placeholder(sketch.graph, shape, dtype, name="x")]
            sketch.known[shape].append(ops.variable(sketch.graph, shape, dtype, name="w"))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    inputs = [tensor for tensors in sketch.known.values() for tensor in tensors]
    feeds = {tensor: rng.standard_normal(sketch.graph.spec(tensor).shape).astype(dtype) for tensor in inputs}
    for _ in range(draw(st.integers(1, 20))):
        sketch.add_one(draw(st.integers(0, devices - 1)))
        if draw(st.integers(0, 4)) == 0:
            sketch.assign(draw(st.sampled_from(SHAPES)))
    computed = [tensor for tensors in sketch.known.values() for tensor in tensors]
    fetches = draw(st.lists(st.sampled_from(computed), min_size=1, max_size=4, unique=True))
    return Sample(sketch.graph, feeds, fetches, devices)


@dataclass
class _Sketch:
    """A graph under construction. known: the tensors of each shape that exist so far."""

    draw: st.DrawFn
    graph: Graph
    dtype: str
    controls: bool
    known: dict[tuple[int, ...], list[Tensor]] = field(default_factory=dict)
    assigned: set[tuple[int, ...]] = field(default_factory=set)

    def any(self, shape: tuple[int, ...]) -> Tensor:
        """Draw a tensor of a shape, preferably the newest one."""
        tensors = self.known[shape]
        latest = tensors[-1:] * 3
        return self.draw(st.sampled_from([*tensors, *latest]))

    def one_of(self, *choices: Callable[[], Tensor]) -> Tensor:
        """Call one of several functions, which is drawn by its index.

        Hypothesis compares strategies by the hashes of their elements, and the hash of a function is its address. If
        functions were sampled directly, later examples would depend on memory addresses.
        """
        return choices[self.draw(st.integers(0, len(choices) - 1))]()

    def add_one(self, device: int) -> None:
        """Add one node or a small pattern of nodes on a device."""
        kinds = [self._chained] * 3 + [self._layer, self._gradient, self._normalised, self._constant, self._same]
        waits = self.controls and self.draw(st.integers(0, 5)) == 0
        # An assign node is likelier, because passes must not move a reader of its variable after it.
        assigns = [node.name for node in self.graph if node.op == "assign"] * 5
        controls = [self.draw(st.sampled_from([*sorted(self.graph.nodes), *assigns]))] if waits else []
        with self.graph.device(worker_device(device)), self.graph.control_dependencies(controls):
            tensor = self.one_of(*kinds)
        self.known[self.graph.spec(tensor).shape].append(tensor)

    def assign(self, shape: tuple[int, ...]) -> None:
        """Assign a new value to the variable of a shape, unless it was assigned before."""
        if shape in self.assigned:
            return
        self.assigned.add(shape)
        variable = self.known[shape][1]
        with self.graph.device(worker_device(0)):
            assigned = ops.assign(self.graph, variable, self.any(shape))
        self.known[shape].append(assigned)

    def _chained(self) -> Tensor:
        graph, shape = self.graph, self.draw(st.sampled_from(SHAPES))
        a, b, c = (self.any(shape) for _ in range(3))
        return self.one_of(
            lambda: ops.add(graph, a, b),
            lambda: ops.sub(graph, a, b),
            lambda: ops.mul(graph, a, self.any(SCALAR)),
            lambda: ops.scale(graph, a, self.draw(st.sampled_from([0.0, 1.0, 0.9, -0.0]))),
            lambda: ops.sub(graph, a, ops.fill(graph, self.draw(st.sampled_from([0.0, -0.0])), (), self.dtype)),
            lambda: ops.div(graph, a, ops.maximum(graph, b, ops.fill(graph, 0.5, shape, self.dtype))),
            lambda: ops.sqrt(graph, ops.abs(graph, a)),
            lambda: ops.minimum(graph, ops.square(graph, a), ops.neg(graph, b)),
            lambda: ops.add_n(graph, [a, b, c]),
            lambda: ops.add_n(graph, [a]),
            lambda: ops.relu(graph, a),
            lambda: ops.relu_gradient(graph, a, b),
            lambda: ops.tanh(graph, a),
        )

    def _layer(self) -> Tensor:
        """Add a convolution or product, then some of the ops that may follow."""
        graph = self.graph
        if self.draw(st.booleans()):
            y = ops.conv2d(graph, self.any(IMAGE), self.any(FILTERS), **GEOMETRY)
            if self.draw(st.booleans()):
                y = ops.add(graph, y, ops.reshape(graph, self.any(VECTOR), (-1, 1, 1)))
            if self.draw(st.booleans()):
                y = ops.add(graph, *self.draw(st.permutations([y, self.any(IMAGE)])))
        else:
            y = ops.matmul(graph, self.any(MATRIX), self.any(SQUARE), transpose_b=self.draw(st.booleans()))
            if self.draw(st.booleans()):
                y = ops.add(graph, y, self.any(VECTOR))
        return ops.relu(graph, y) if self.draw(st.booleans()) else y

    def _gradient(self) -> Tensor:
        """Add the gradients of a layer's weights and bias."""
        graph = self.graph
        if self.draw(st.booleans()):
            dy = self.any(IMAGE)
            db = ops.reduce_sum(graph, dy, (0, 2, 3))
            dw = ops.conv2d_weight_gradient(graph, dy, self.any(IMAGE), weight_shape=FILTERS, **GEOMETRY)
        else:
            dy = self.any(MATRIX)
            db = ops.reduce_sum(graph, dy, (0,))
            dw = ops.matmul(graph, self.any(MATRIX), dy, transpose_a=True)
        self.known[VECTOR].append(db)
        return dw

    def _normalised(self) -> Tensor:
        """Add batch normalization and ReLU, and perhaps the gradients of both."""
        graph, shape = self.graph, self.draw(st.sampled_from([IMAGE, MATRIX]))
        x, gamma = self.any(shape), self.any(VECTOR)
        normalised, mean, variance = ops.batch_norm(graph, x, gamma, self.any(VECTOR), epsilon=1e-3)
        y = ops.relu(graph, normalised)
        self.known[VECTOR].append(mean)
        self.known[shape].append(self.draw(st.sampled_from([y, y, y, normalised])))
        if self.draw(st.booleans()):
            dy = ops.relu_gradient(graph, self.any(shape), y)
            y, dgamma, _ = ops.batch_norm_gradient(graph, x, gamma, mean, variance, dy, epsilon=1e-3)
            self.known[VECTOR].append(dgamma)
        return y

    def _constant(self) -> Tensor:
        graph, shape = self.graph, self.draw(st.sampled_from(SHAPES))
        numbers = st.sampled_from([0.0, -0.0, 1.0, 0.1, -3.5])
        filled = ops.fill(graph, self.draw(numbers), shape, self.dtype)
        return self.one_of(
            lambda: ops.scale(graph, filled, self.draw(numbers)),
            lambda: ops.broadcast_to(graph, ops.fill(graph, self.draw(numbers), (), self.dtype), shape),
            lambda: ops.constant(graph, np.linspace(-1, 1, math.prod(shape)).reshape(shape).astype(self.dtype)),
            lambda: ops.tanh(graph, filled),
            lambda: ops.relu_gradient(graph, filled, ops.cast(graph, filled, self.dtype)),
        )

    def _same(self) -> Tensor:
        """Add nodes that return their input."""
        graph, shape = self.graph, self.draw(st.sampled_from(SHAPES))
        x = self.any(shape)
        return self.one_of(
            lambda: ops.identity(graph, x),
            lambda: ops.stop_gradient(graph, x),
            lambda: ops.cast(graph, x, self.dtype),
            lambda: ops.broadcast_to(graph, x, shape),
            lambda: ops.reshape(graph, ops.reshape(graph, x, (-1,)), shape),
            lambda: ops.mul(graph, ops.fill(graph, 1.0, shape, self.dtype), x),
        )
