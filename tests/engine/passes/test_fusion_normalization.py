"""Batch normalisation and ReLU are one node each way, as long as nobody needs what is in between."""

from __future__ import annotations

import numpy as np
import pytest

from runner.engine import ops
from runner.engine.autodiff import gradients
from runner.engine.graph import Graph
from runner.engine.passes.fusion_normalization import fuse_normalization_and_relu
from runner.engine.passes.rewriting import Moved, Roots
from runner.engine.tensor import Tensor
from tests.engine.passes.exactness import assert_unchanged, counts

THERE = "/job:worker/task:1/device:cpu:0"
EPSILON = 1e-3


class Sketch:
    """A graph with a batch normalisation, called norm, of (N, C) or (N, C, H, W)."""

    def __init__(self, *shape: int) -> None:
        self.graph = Graph()
        self.x, self.dy = self.input("x", *shape), self.input("dy", *shape)
        self.gamma, self.beta = self.input("gamma", shape[1]), self.input("beta", shape[1])
        self.y, self.mean, self.variance = ops.batch_norm(
            self.graph, self.x, self.gamma, self.beta, epsilon=EPSILON, name="norm"
        )

    def input(self, name: str, *shape: int) -> Tensor:
        return ops.placeholder(self.graph, shape, "float64", name=name)

    def relu(self) -> Tensor:
        return ops.relu(self.graph, self.y, name="relu")

    def backward(self, gate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of the normalisation for what a gate lets through."""
        return ops.batch_norm_gradient(
            self.graph, self.x, self.gamma, self.mean, self.variance, gate, epsilon=EPSILON, name="back"
        )

    def fused(self, *fetches: Tensor, targets: tuple[str, ...] = ()) -> tuple[Graph, Moved]:
        """The graph after the pass, which computes the same and which the pass leaves alone from then on."""
        roots = Roots.of(fetches, targets)
        result, moved = fuse_normalization_and_relu(self.graph, roots)
        rng = np.random.default_rng(0)
        inputs = [node for node in self.graph if node.op == "placeholder"]
        feeds = {node[0]: rng.standard_normal(node.outputs[0].shape) for node in inputs}
        assert_unchanged(self.graph, result, moved, fetches, feeds)
        assert fuse_normalization_and_relu(result, roots.after(moved))[0].nodes == result.nodes
        return result, moved


@pytest.fixture
def sketch() -> Sketch:
    return Sketch(4, 3, 2, 2)


@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4, 4)])
def test_both_ways_are_one_node_each(shape: tuple[int, ...]) -> None:
    sketch = Sketch(*shape)
    graph = sketch.graph
    y = sketch.relu()
    kept = ops.scale(graph, sketch.mean, 0.9)
    found = gradients(graph, [y], [sketch.x, sketch.gamma, sketch.beta], [sketch.dy])
    assert None not in found
    fetches = [y, kept, sketch.variance, *(tensor for tensor in found if tensor is not None)]
    result, moved = sketch.fused(*fetches)
    left = counts(result)
    assert (left["batch_norm_relu"], left["batch_norm_relu_gradient"]) == (1, 1)
    assert not left.keys() & {"batch_norm", "relu", "relu_gradient", "batch_norm_gradient"}
    assert moved == {sketch.mean: Tensor("relu", 1), sketch.variance: Tensor("relu", 2)}
    back = next(node for node in result if node.op == "batch_norm_relu_gradient")
    statistics = (Tensor("relu", 1), Tensor("relu", 2), Tensor("relu", 3))
    assert back.inputs == (sketch.x, sketch.gamma, *statistics, sketch.dy)
    assert back.attributes == result.nodes["relu"].attributes == {"epsilon": EPSILON}


def test_forward_alone_is_fused_where_the_gate_has_other_readers(sketch: Sketch) -> None:
    gate = ops.relu_gradient(sketch.graph, sketch.dy, sketch.relu(), name="gate")
    dx, _, _ = sketch.backward(gate)
    result, _ = sketch.fused(dx, ops.exp(sketch.graph, gate))
    assert (result.nodes["relu"].op, result.nodes["gate"].op) == ("batch_norm_relu", "relu_gradient")
    assert result.nodes["back"].op == "batch_norm_gradient"
    assert result.nodes["back"].inputs[2:4] == (Tensor("relu", 1), Tensor("relu", 2))


def test_the_gate_of_another_relu_is_no_mask(sketch: Sketch) -> None:
    other = ops.relu(sketch.graph, sketch.dy, name="other")
    dx, _, _ = sketch.backward(ops.relu_gradient(sketch.graph, sketch.dy, other, name="gate"))
    result, _ = sketch.fused(dx, sketch.relu())
    assert (result.nodes["relu"].op, result.nodes["back"].op) == ("batch_norm_relu", "batch_norm_gradient")


def test_a_gate_that_is_read_as_x_too_stays(sketch: Sketch) -> None:
    gate = ops.relu_gradient(sketch.graph, sketch.dy, sketch.relu(), name="gate")
    dx, _, _ = ops.batch_norm_gradient(
        sketch.graph, gate, sketch.gamma, sketch.mean, sketch.variance, gate, epsilon=EPSILON
    )
    assert "gate" in sketch.fused(dx)[0]


@pytest.mark.parametrize("obstacle", ["another reader", "a fetch", "a target", "another op", "another device"])
def test_what_is_needed_in_between_stays(sketch: Sketch, obstacle: str) -> None:
    graph = sketch.graph
    with graph.device(THERE if obstacle == "another device" else ""):
        y = ops.tanh(graph, sketch.y) if obstacle == "another op" else sketch.relu()
    fetches = [y, sketch.y] if obstacle == "a fetch" else [y]
    if obstacle == "another reader":
        fetches.append(ops.exp(graph, sketch.y))
    result, moved = sketch.fused(*fetches, targets=("norm",) if obstacle == "a target" else ())
    assert (result.nodes, moved) == (graph.nodes, {})


def test_a_relu_that_waits_for_something_later_stays(sketch: Sketch) -> None:
    """The fused node stands where the normalisation stood, because its statistics may be read right after it."""
    ops.exp(sketch.graph, sketch.mean, name="early")
    with sketch.graph.control_dependencies(["early"]):
        y = sketch.relu()
    assert sketch.fused(y)[1] == {}


def test_what_a_relu_waits_for_is_waited_for_from_the_start(sketch: Sketch) -> None:
    with sketch.graph.control_dependencies(["dy"]):
        y = sketch.relu()
    assert sketch.fused(y)[0].nodes["relu"].control_inputs == ("dy",)


def test_statistics_can_be_read_before_the_relu(sketch: Sketch) -> None:
    ops.exp(sketch.graph, sketch.mean, name="early")
    result, _ = sketch.fused(sketch.relu(), Tensor("early"))
    assert list(result.nodes)[-2:] == ["relu", "early"]
