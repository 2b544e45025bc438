"""Layers do what follows them, as long as nobody else needs what is in between."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from runner.engine import ops
from runner.engine.graph import Graph, LayerStamp, Node
from runner.engine.passes.fusion_bias_relu import fuse_bias_and_relu
from runner.engine.passes.rewriting import Roots
from runner.engine.tensor import Tensor
from tests.engine.passes.exactness import assert_unchanged, counts

IMAGE, FILTERS, CHANNELS = (2, 3, 4, 5), (3, 3, 3, 3), (3,)
THERE = "/job:worker/task:1/device:cpu:0"


class Sketch:
    """A graph with images, filters and a bias."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.x, self.other = (self.input("x", *IMAGE), self.input("other", *IMAGE))
        self.w, self.bias = self.input("w", *FILTERS), self.input("bias", *CHANNELS)

    def input(self, name: str, *shape: int) -> Tensor:
        return ops.placeholder(self.graph, shape, "float32", name=name)

    def conv(self, x: Tensor | None = None, name: str = "conv") -> Tensor:
        return ops.conv2d(self.graph, x or self.x, self.w, padding=(1, 1, 1, 1), name=name)

    def biased(self, y: Tensor, *, swapped: bool = False) -> Tensor:
        column = ops.reshape(self.graph, self.bias, (1, 3, 1, 1) if swapped else (3, 1, 1), name="column")
        return ops.add(self.graph, *((column, y) if swapped else (y, column)), name="biased")

    def fused(self, *fetches: Tensor, targets: tuple[str, ...] = ()) -> Graph:
        """The graph after the pass, which computes the same and which the pass leaves alone from then on."""
        roots = Roots.of(fetches, targets)
        result, moved = fuse_bias_and_relu(self.graph, roots)
        assert moved == {}
        rng = np.random.default_rng(0)
        inputs = [node for node in self.graph if node.op in ("placeholder", "variable")]
        feeds = {node[0]: rng.standard_normal(node.outputs[0].shape).astype("float32") for node in inputs}
        assert_unchanged(self.graph, result, moved, fetches, feeds)
        assert fuse_bias_and_relu(result, roots)[0].nodes == result.nodes
        return result


@pytest.fixture
def sketch() -> Sketch:
    return Sketch()


def flags(node: Node) -> tuple[object, ...]:
    return tuple(node.attributes.get(key) for key in ("bias", "residual", "relu"))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_whatever_follows_a_convolution_in_order_joins_it(
    sketch: Sketch, bias: bool, residual: bool, relu: bool, swapped: bool
) -> None:
    graph = sketch.graph
    y = sketch.conv()
    if bias:
        y = sketch.biased(y, swapped=swapped)
    if residual:
        y = ops.add(graph, *((sketch.other, y) if swapped else (y, sketch.other)), name="sum")
    if relu:
        y = ops.relu(graph, y, name="relu")
    result = sketch.fused(y)
    last = result.nodes[y.node]
    assert last.op == ("conv2d_fused" if bias or residual or relu else "conv2d")
    assert set(counts(result)) <= {"placeholder", "reshape", last.op}
    if last.op == "conv2d_fused":
        added = [sketch.bias] * bias + [sketch.other] * residual
        assert last.inputs == (sketch.x, sketch.w, *added)
        assert flags(last) == (bias, residual, relu)
        assert last.attributes["padding"] == (1, 1, 1, 1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_a_dense_layer_is_one_node(sketch: Sketch, bias: bool, relu: bool) -> None:
    graph = sketch.graph
    a, b, vector = sketch.input("a", 4, 3), sketch.input("b", 2, 3), sketch.input("vector", 2)
    y = ops.matmul(graph, a, b, transpose_b=True, name="product")
    if bias:
        y = ops.add(graph, y, vector)
    if relu:
        y = ops.relu(graph, y)
    last = sketch.fused(y).nodes[y.node]
    assert last.op == ("matmul_fused" if bias or relu else "matmul")
    assert last.inputs == ((a, b, vector) if bias else (a, b))
    assert last.attributes["transpose_b"] is True
    if bias or relu:
        assert flags(last) == (bias, None, relu)


def test_a_square_sum_of_products_is_no_bias(sketch: Sketch) -> None:
    """A residual of a matrix product stays an add: there is no such fused op."""
    a = sketch.input("a", 3, 3)
    y = ops.add(sketch.graph, ops.matmul(sketch.graph, a, a), a)
    assert sketch.fused(y).nodes[y.node].op == "add"


def test_what_comes_in_another_order_stays(sketch: Sketch) -> None:
    """Relu, then bias: (conv, relu) is fused; residual, then bias: (conv, residual) is."""
    first = sketch.biased(ops.relu(sketch.graph, sketch.conv(name="a"), name="relu"))
    second = sketch.biased(ops.add(sketch.graph, sketch.conv(sketch.other, "b"), sketch.x, name="sum"))
    result = sketch.fused(first, second)
    assert flags(result.nodes["relu"]) == (False, False, True)
    assert flags(result.nodes["sum"]) == (False, True, False)
    assert {result.nodes[t.node].op for t in (first, second)} == {"add"}


def test_the_later_of_two_summed_convolutions_takes_the_sum(sketch: Sketch) -> None:
    """A shortcut with a projection: the earlier convolution is done when the later one adds it."""
    short = sketch.biased(sketch.conv(name="short"))
    long = sketch.conv(sketch.conv(name="inner"), name="outer")
    y = ops.relu(sketch.graph, ops.add(sketch.graph, short, long, name="sum"), name="y")
    result = sketch.fused(y)
    assert result.nodes["y"].inputs == (Tensor("inner"), sketch.w, short)
    assert flags(result.nodes["y"]) == (False, True, True)
    assert flags(result.nodes[short.node]) == (True, False, False)
    assert result.nodes["inner"].op == "conv2d"


def test_a_convolution_is_not_added_to_itself(sketch: Sketch) -> None:
    y = sketch.conv()
    twice = ops.add(sketch.graph, y, y)
    assert sketch.fused(twice).nodes[twice.node].op == "add"


def test_residuals_that_are_made_later_are_waited_for(sketch: Sketch) -> None:
    y = sketch.conv()
    late = ops.exp(sketch.graph, sketch.other, name="late")
    ops.add(sketch.graph, y, late, name="sum")
    assert list(sketch.fused(Tensor("sum")).nodes)[-2:] == ["late", "sum"]


Obstacle = Callable[[Sketch, Tensor], tuple[list[Tensor], tuple[str, ...]]]


def _waited_for(sketch: Sketch, y: Tensor) -> tuple[list[Tensor], tuple[str, ...]]:
    with sketch.graph.control_dependencies([y.node]):
        return [ops.exp(sketch.graph, sketch.other)], ()


def _beside(sketch: Sketch, y: Tensor) -> tuple[list[Tensor], tuple[str, ...]]:
    return [sketch.graph.add("exp", [sketch.other], colocate_with=[y.node])[0]], ()


OBSTACLES: dict[str, Obstacle] = {
    "another reader": lambda s, y: ([ops.exp(s.graph, y)], ()),
    "a fetch": lambda s, y: ([y], ()),
    "a target": lambda s, y: ([], (y.node,)),
    "somebody who waits": _waited_for,
    "a partner": _beside,
}


@pytest.mark.parametrize("obstacle", OBSTACLES.values(), ids=OBSTACLES.keys())
def test_what_is_needed_by_others_stays(sketch: Sketch, obstacle: Obstacle) -> None:
    y = sketch.conv()
    last = ops.relu(sketch.graph, y)
    fetches, targets = obstacle(sketch, y)
    result = sketch.fused(last, *fetches, targets=targets)
    assert (result.nodes[y.node].op, result.nodes[last.node].op) == ("conv2d", "relu")


def test_devices_are_not_crossed(sketch: Sketch) -> None:
    graph = sketch.graph
    y = sketch.conv()
    with graph.device(THERE):
        there = ops.relu(graph, y)
        column = ops.reshape(graph, sketch.bias, (3, 1, 1))
    biased = ops.add(graph, sketch.conv(sketch.other, "second"), column)
    assert sketch.fused(there, biased).nodes == graph.nodes


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 4, 1), (5,), ()])
def test_only_one_number_per_channel_is_a_bias(sketch: Sketch, shape: tuple[int, ...]) -> None:
    y = ops.add(sketch.graph, sketch.conv(), sketch.input("addend", *shape))
    assert sketch.fused(y).nodes[y.node].op == "add"


def test_a_sum_that_is_larger_than_the_product_is_no_bias(sketch: Sketch) -> None:
    y = ops.matmul(sketch.graph, sketch.input("a", 1, 2), sketch.input("b", 2, 3))
    spread = ops.add(sketch.graph, y, sketch.input("addend", 4, 3))
    assert sketch.fused(spread).nodes[spread.node].op == "add"


def test_name_layer_device_and_what_parts_waited_for(sketch: Sketch) -> None:
    graph = sketch.graph
    with graph.device(THERE), graph.layer(LayerStamp("conv1", "conv")), graph.control_dependencies(["x"]):
        y = sketch.conv()
    with (
        graph.device(THERE),
        graph.layer(LayerStamp("relu1", "activation")),
        graph.control_dependencies(["other", "x"]),
    ):
        ops.relu(graph, y, name="relu1")
    fused = sketch.fused(Tensor("relu1")).nodes["relu1"]
    assert (fused.device, fused.layer) == (THERE, LayerStamp("conv1", "conv"))
    assert set(fused.control_inputs) == {"x", "other"}
