"""Gradients of weights take those of biases with them, if both can be made at one place."""

from __future__ import annotations

import numpy as np
import pytest

from runner.engine import ops
from runner.engine.autodiff import gradients
from runner.engine.graph import Graph
from runner.engine.passes.fusion_bias_gradient import fuse_bias_gradients
from runner.engine.passes.identities import remove_identities
from runner.engine.passes.rewriting import Moved, Roots
from runner.engine.tensor import Tensor
from tests.engine.passes.exactness import assert_unchanged, counts

GEOMETRY = {"weight_shape": (3, 2, 3, 3), "strides": (2, 1), "padding": (1, 0, 1, 1), "groups": 1}
THERE = "/job:worker/task:1/device:cpu:0"


class Sketch:
    """A graph with what gradients of a convolution and of a dense layer read."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.x, self.dy = self.input("x", 2, 2, 5, 4), self.input("dy", 2, 3, 2, 4)
        self.rows, self.drows = self.input("rows", 4, 3), self.input("drows", 4, 2)

    def input(self, name: str, *shape: int) -> Tensor:
        return ops.placeholder(self.graph, shape, "float32", name=name)

    def dw(self, x: Tensor | None = None) -> Tensor:
        return ops.conv2d_weight_gradient(self.graph, self.dy, x or self.x, **GEOMETRY, name="dw")

    def db(self, axes: tuple[int, ...] = (0, 2, 3), *, keepdims: bool = False) -> Tensor:
        return ops.reduce_sum(self.graph, self.dy, axes, keepdims=keepdims, name="db")

    def fused(self, *fetches: Tensor, targets: tuple[str, ...] = ()) -> tuple[Graph, Moved]:
        """The graph after the pass, which computes the same and which the pass leaves alone from then on."""
        roots = Roots.of(fetches, targets)
        result, moved = fuse_bias_gradients(self.graph, roots)
        rng = np.random.default_rng(0)
        inputs = [node for node in self.graph if node.op == "placeholder"]
        feeds = {node[0]: rng.standard_normal(node.outputs[0].shape).astype("float32") for node in inputs}
        assert_unchanged(self.graph, result, moved, fetches, feeds)
        assert fuse_bias_gradients(result, roots.after(moved))[0].nodes == result.nodes
        return result, moved


@pytest.fixture
def sketch() -> Sketch:
    return Sketch()


@pytest.mark.parametrize("sum_first", [False, True])
def test_a_convolutions_gradients_are_one_node(sketch: Sketch, sum_first: bool) -> None:
    made = [sketch.db(), sketch.dw()] if sum_first else [sketch.dw(), sketch.db()]
    ops.exp(sketch.graph, Tensor("db"), name="reader")
    result, moved = sketch.fused(*made, Tensor("reader"))
    node = result.nodes["dw"]
    assert (node.op, node.inputs) == ("conv2d_weight_bias_gradient", (sketch.dy, sketch.x))
    assert node.attributes == {**GEOMETRY, "dtype": "float32"}
    assert moved == {Tensor("db"): Tensor("dw", 1)}
    assert result.nodes["reader"].inputs == (Tensor("dw", 1),)
    assert "db" not in result


@pytest.mark.parametrize("sum_first", [False, True])
def test_a_dense_layers_gradients_are_one_node(sketch: Sketch, sum_first: bool) -> None:
    graph = sketch.graph

    def db() -> Tensor:
        return ops.reduce_sum(graph, sketch.drows, (0,), name="db")

    before = [db()] if sum_first else []
    dw = ops.matmul(graph, sketch.rows, sketch.drows, transpose_a=True, name="dw")
    result, moved = sketch.fused(dw, *(before or [db()]))
    assert (result.nodes["dw"].op, result.nodes["dw"].inputs) == ("matmul_bias_gradient", (sketch.rows, sketch.drows))
    assert moved == {Tensor("db"): Tensor("dw", 1)}


def test_what_autodiff_makes_of_layers_with_bias_is_found() -> None:
    """A bias that is reshaped to be added, and one that is not."""
    sketch = Sketch()
    graph = sketch.graph
    w, filter_bias, row_bias = sketch.input("w", 3, 2, 3, 3), sketch.input("b", 3), sketch.input("c", 2)
    y = ops.conv2d(graph, sketch.x, w, padding=(1, 1, 1, 1))
    y = ops.add(graph, y, ops.reshape(graph, filter_bias, (3, 1, 1)))
    matrix = sketch.input("m", 3, 2)
    z = ops.add(graph, ops.matmul(graph, sketch.rows, matrix), row_bias)
    found = gradients(graph, [ops.relu(graph, y), ops.relu(graph, z)], [w, filter_bias, matrix, row_bias])
    assert None not in found
    shortened, _ = remove_identities(graph, Roots())
    result, _ = fuse_bias_gradients(shortened, Roots())
    assert (counts(result)["conv2d_weight_bias_gradient"], counts(result)["matmul_bias_gradient"]) == (1, 1)


@pytest.mark.parametrize(("axes", "keepdims"), [((0, 2), False), ((0, 2, 3), True), ((0, 1, 2, 3), False)])
def test_other_sums_stay(sketch: Sketch, axes: tuple[int, ...], keepdims: bool) -> None:
    result, moved = sketch.fused(sketch.db(axes, keepdims=keepdims), sketch.dw())
    assert (result.nodes, moved) == (sketch.graph.nodes, {})


@pytest.mark.parametrize(("transpose_a", "transpose_b"), [(False, False), (True, True), (False, True)])
def test_other_products_stay(sketch: Sketch, transpose_a: bool, transpose_b: bool) -> None:
    square = sketch.input("square", 2, 2)
    db = ops.reduce_sum(sketch.graph, square, (0,))
    dw = ops.matmul(sketch.graph, square, square, transpose_a=transpose_a, transpose_b=transpose_b)
    assert sketch.fused(db, dw)[1] == {}


def test_a_sum_of_the_other_factor_stays(sketch: Sketch) -> None:
    db = ops.reduce_sum(sketch.graph, sketch.rows, (0,))
    dw = ops.matmul(sketch.graph, sketch.rows, sketch.drows, transpose_a=True)
    assert sketch.fused(db, dw)[1] == {}


def test_the_place_of_the_first_must_do_for_both(sketch: Sketch) -> None:
    """What the sum already serves cannot come after something that the weight gradient still needs."""
    db = sketch.db()
    late = ops.tanh(sketch.graph, sketch.x)
    assert sketch.fused(db, sketch.dw(late))[1] == {}


def test_a_weight_gradient_that_waits_longer_stays(sketch: Sketch) -> None:
    db = sketch.db()
    ops.tanh(sketch.graph, sketch.x, name="awaited")
    with sketch.graph.control_dependencies(["awaited"]):
        dw = sketch.dw()
    assert sketch.fused(db, dw)[1] == {}


def test_each_sum_joins_one_weight_gradient(sketch: Sketch) -> None:
    other = ops.neg(sketch.graph, sketch.x)
    total = sketch.db()
    first, second = sketch.dw(), sketch.dw(other)
    result, moved = sketch.fused(total, first, second)
    assert moved == {total: Tensor(first.node, 1)}
    assert result.nodes[second.node].op == "conv2d_weight_gradient"


def test_a_sum_that_must_go_on_to_exist_stays(sketch: Sketch) -> None:
    db, dw = sketch.db(), sketch.dw()
    assert sketch.fused(db, dw, targets=("db",))[1] == {}


def test_devices_are_not_crossed(sketch: Sketch) -> None:
    db = sketch.db()
    with sketch.graph.device(THERE):
        dw = sketch.dw()
    assert sketch.fused(db, dw)[1] == {}
