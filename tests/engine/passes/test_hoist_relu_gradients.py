"""The gradient of a ReLU before a max pooling is taken of what was pooled, and every bit stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine import ops
from runner.engine.autodiff import gradients
from runner.engine.device import local_cluster
from runner.engine.graph import Graph
from runner.engine.kernel_table import load_kernels
from runner.engine.passes.hoist_relu_gradients import hoist_relu_gradients
from runner.engine.passes.rewriting import Moved, Roots
from runner.engine.program_plans import ProgramPlans
from runner.engine.tensor import Tensor
from runner.models.vgg_a import VggA
from runner.optimizers.sgd import Sgd
from runner.strategies.base import Task
from runner.strategies.single import Single
from tests.engine.passes.exactness import Array, assert_same_bits, assert_unchanged
from tests.engine.running import Bench

THERE = "/job:worker/task:1/device:cpu:0"
IMAGE = (2, 3, 6, 6)
HALVES: Mapping[str, tuple[int, ...]] = {"window": (2, 2), "strides": (2, 2), "padding": (0, 0, 0, 0)}
OVERLAPPING: Mapping[str, tuple[int, ...]] = {"window": (3, 3), "strides": (2, 2), "padding": (0, 1, 1, 0)}


class Sketch:
    """A graph of images y, which were pooled to ``pooled`` with positions ``argmax``."""

    def __init__(self, geometry: Mapping[str, tuple[int, ...]] = HALVES, device: str = "") -> None:
        self.graph, self.geometry = Graph(), geometry
        self.y = self.input("y", IMAGE)
        with self.graph.device(device):
            self.pooled, self.argmax = ops.max_pool(self.graph, self.y, **geometry, name="pool")
        self.dy = self.input("dy", self.graph.spec(self.pooled).shape)

    def input(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return ops.placeholder(self.graph, shape, "float64", name=name)

    def back(self, dy: Tensor | None = None, **other: Any) -> Tensor:
        """The gradient of the pooling, of images like y."""
        attributes = {**self.geometry, "input_shape": IMAGE, **other}
        return ops.max_pool_gradient(self.graph, dy or self.dy, self.argmax, **attributes, name="back")

    def gate(self, dx: Tensor, y: Tensor | None = None) -> Tensor:
        return ops.relu_gradient(self.graph, dx, y or self.y, name="gate")

    def hoisted(self, *fetches: Tensor, targets: tuple[str, ...] = ()) -> tuple[Graph, Moved]:
        """The graph after the pass, which computes the same and which the pass leaves alone from then on."""
        roots = Roots.of(fetches, targets)
        result, moved = hoist_relu_gradients(self.graph, roots)
        assert_unchanged(self.graph, result, moved, fetches, self.feeds())
        assert hoist_relu_gradients(result, roots.after(moved))[0].nodes == result.nodes
        return result, moved

    def feeds(self, dtype: str = "float64") -> dict[Tensor, Array]:
        rng = np.random.default_rng(0)
        inputs = [node for node in self.graph if node.op == "placeholder"]
        return {node[0]: rng.standard_normal(node.outputs[0].shape).astype(dtype) for node in inputs}


@pytest.fixture
def sketch() -> Sketch:
    return Sketch()


@pytest.mark.parametrize("geometry", [HALVES, OVERLAPPING])
def test_the_relu_gradient_goes_before_the_pooling_gradient(geometry: Mapping[str, tuple[int, ...]]) -> None:
    sketch = Sketch(geometry)
    result, moved = sketch.hoisted(ops.exp(sketch.graph, sketch.gate(sketch.back()), name="reader"))
    assert moved == {Tensor("gate"): Tensor("back")}
    assert list(result.nodes) == ["y", "pool", "dy", "gate", "back", "reader"]
    gate, back = result.nodes["gate"], result.nodes["back"]
    assert (gate.op, gate.inputs) == ("relu_gradient", (sketch.dy, sketch.pooled))
    assert gate.outputs[0].shape == (2, 3, 3, 3)
    assert (back.op, back.inputs) == ("max_pool_gradient", (Tensor("gate"), sketch.argmax))
    assert back.attributes == sketch.graph.nodes["back"].attributes
    assert result.nodes["reader"].inputs == (Tensor("back"),)


def test_the_result_is_found_where_it_went_when_it_is_fetched(sketch: Sketch) -> None:
    gate = sketch.gate(sketch.back())
    assert sketch.hoisted(gate)[1] == {gate: Tensor("back")}


@pytest.mark.parametrize("op", [ops.relu, ops.abs])
def test_what_gave_y_does_not_matter(op: Callable[[Graph, Tensor], Tensor]) -> None:
    graph = Graph()
    y = op(graph, ops.placeholder(graph, IMAGE, "float64", name="x"))
    pooled, argmax = ops.max_pool(graph, y, **HALVES)
    dx = ops.max_pool_gradient(graph, pooled, argmax, **HALVES, input_shape=IMAGE)
    gate = ops.relu_gradient(graph, dx, y)
    result, moved = hoist_relu_gradients(graph, Roots.of([gate]))
    assert moved == {gate: dx}
    assert result.nodes[gate.node].inputs == (pooled, pooled)


def test_through_two_poolings_it_goes_all_the_way(sketch: Sketch) -> None:
    graph = sketch.graph
    small = (2, 3, 2, 2)
    window = {"window": (2, 2), "strides": (1, 1), "padding": (0, 0, 0, 0)}
    twice, argmax = ops.max_pool(graph, sketch.pooled, **window, name="again")
    dtwice = sketch.input("dtwice", small)
    dpooled = ops.max_pool_gradient(graph, dtwice, argmax, **window, input_shape=(2, 3, 3, 3), name="first")
    gate = sketch.gate(sketch.back(dpooled))
    result, moved = sketch.hoisted(ops.exp(graph, gate))
    assert moved == {gate: Tensor("back")}
    assert (result.nodes["gate"].inputs, result.nodes["gate"].outputs[0].shape) == ((dtwice, twice), small)
    assert (result.nodes["first"].inputs[0], result.nodes["back"].inputs[0]) == (gate, dpooled)


def test_what_one_gives_another_takes_where_it_is(sketch: Sketch) -> None:
    """Two layers of relu and pooling: dy of the first is what the relu_gradient of the second was."""
    graph = sketch.graph
    again = ops.relu(graph, sketch.pooled)
    twice, _ = ops.max_pool(graph, again, window=(3, 3), strides=(1, 1))
    (dx,) = gradients(graph, [twice], [sketch.y])
    assert dx is not None
    gate = sketch.gate(dx)
    result, moved = sketch.hoisted(gate)
    assert (len(moved), len(result)) == (2, len(graph))
    assert result.nodes["gate"].inputs[0].node.endswith("max_pool_gradient")


@pytest.mark.parametrize("obstacle", ["another reader", "a fetch", "a target", "a wait", "another device"])
def test_a_pooling_gradient_that_is_needed_as_it_is_stays(sketch: Sketch, obstacle: str) -> None:
    graph = sketch.graph
    dx = sketch.back()
    with graph.device(THERE if obstacle == "another device" else ""):
        fetches = [sketch.gate(dx)]
    if obstacle == "a fetch":
        fetches.append(dx)
    if obstacle == "another reader":
        fetches.append(ops.exp(graph, dx))
    if obstacle == "a wait":
        with graph.control_dependencies(["back"]):
            fetches.append(ops.exp(graph, sketch.dy))
    result, moved = sketch.hoisted(*fetches, targets=("back",) if obstacle == "a target" else ())
    assert (result.nodes, moved) == (graph.nodes, {})


@pytest.mark.parametrize("obstacle", ["a target", "a wait", "it waits", "it stands beside"])
def test_a_relu_gradient_that_was_told_where_to_be_stays(sketch: Sketch, obstacle: str) -> None:
    graph = sketch.graph
    dx = sketch.back()
    ops.exp(graph, sketch.dy, name="early")
    with graph.control_dependencies(["early"] if obstacle == "it waits" else []):
        beside = ["early"] if obstacle == "it stands beside" else []
        fetches = [graph.add("relu_gradient", [dx, sketch.y], name="gate", colocate_with=beside)[0]]
    if obstacle == "a wait":
        with graph.control_dependencies(["gate"]):
            fetches.append(ops.exp(graph, sketch.dy))
    result, moved = sketch.hoisted(*fetches, targets=("gate",) if obstacle == "a target" else ())
    assert (result.nodes, moved) == (graph.nodes, {})


def test_a_relu_gradient_by_something_else_than_what_was_pooled_stays(sketch: Sketch) -> None:
    other = sketch.input("other", IMAGE)
    assert sketch.hoisted(sketch.gate(sketch.back(), other))[1] == {}


def test_positions_that_no_pooling_gave_are_left_alone() -> None:
    sketch = Sketch({"window": (1, 1), "strides": (1, 1), "padding": (0, 0, 0, 0)})
    sketch.argmax = ops.cast(sketch.graph, sketch.y, "int32")
    assert sketch.hoisted(sketch.gate(sketch.back()))[1] == {}


@pytest.mark.parametrize("other", [{"window": (1, 2)}, {"strides": (2, 4)}, {"padding": (1, 0, 0, 0)}])
def test_positions_in_other_windows_are_left_alone(other: dict[str, tuple[int, ...]]) -> None:
    """There are as many windows, but a position means another place of the image."""
    sketch = Sketch({"window": (2, 2), "strides": (2, 3), "padding": (0, 0, 0, 0)})
    assert sketch.hoisted(sketch.gate(sketch.back(**other)))[1] == {}


def test_a_pooling_on_another_device_is_left_there() -> None:
    sketch = Sketch(device=THERE)
    assert sketch.hoisted(sketch.gate(sketch.back()))[1] == {}


@st.composite
def poolings(draw: st.DrawFn) -> tuple[dict[str, tuple[int, ...]], Array, int]:
    """A geometry, images of a few values with many ties, and a seed for dy."""
    window = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    strides = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    edges = [draw(st.integers(0, extent - 1)) for extent in (window[0], window[0], window[1], window[1])]
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 2)), *(draw(st.integers(e, e + 5)) for e in window))
    values = st.sampled_from([-np.inf, -2.0, -1.0, -0.0, 0.0, 0.5, 1.0, np.inf])
    size = int(np.prod(shape))
    y = np.array(draw(st.lists(values, min_size=size, max_size=size))).reshape(shape)
    return {"window": window, "strides": strides, "padding": tuple(edges)}, y, draw(st.integers(0, 99))


@given(poolings())
def test_no_bit_changes_whatever_is_pooled_and_how(drawn: tuple[dict[str, tuple[int, ...]], Array, int]) -> None:
    """Of dy with zeros of both signs and infinities; windows overlap, leave gaps, reach over edges and hold ties."""
    geometry, image, seed = drawn
    graph = Graph()
    y = ops.placeholder(graph, image.shape, "float64", name="y")
    pooled, argmax = ops.max_pool(graph, y, **geometry)
    dy = ops.placeholder(graph, graph.spec(pooled).shape, "float64", name="dy")
    dx = ops.max_pool_gradient(graph, dy, argmax, **geometry, input_shape=image.shape)
    gate = ops.relu_gradient(graph, dx, y)
    result, moved = hoist_relu_gradients(graph, Roots.of([gate]))
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(graph.spec(dy).shape)
    zeros = np.copysign(0.0, normal)
    chance = rng.random(normal.shape)
    feeds = {y: image, dy: np.where(chance < 0.3, zeros, np.where(chance > 0.9, np.inf, normal))}
    assert moved == {gate: dx}
    assert_unchanged(graph, result, moved, [gate], feeds)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("geometry", [HALVES, OVERLAPPING])
def test_the_kernels_that_training_runs_agree_on_every_bit(geometry: Mapping[str, tuple[int, ...]], dtype: str) -> None:
    graph = Graph()
    y = ops.placeholder(graph, (2, 16, 9, 10), dtype, name="y")
    pooled, argmax = ops.max_pool(graph, y, **geometry)
    dy = ops.placeholder(graph, graph.spec(pooled).shape, dtype, name="dy")
    dx = ops.max_pool_gradient(graph, dy, argmax, **geometry, input_shape=(2, 16, 9, 10))
    gate = ops.relu_gradient(graph, dx, y)
    result, moved = hoist_relu_gradients(graph, Roots.of([gate]))
    rng = np.random.default_rng(0)
    feeds = {t: rng.standard_normal(graph.spec(t).shape).round(1).astype(dtype) for t in (y, dy)}
    before = Bench(graph, load_kernels(), [gate]).run(feeds)
    after = Bench(result, load_kernels(), [dx]).run(feeds)
    assert_same_bits(before[gate], after[moved[gate]])


def test_in_a_training_step_every_stage_ends_in_a_relu_gradient_of_what_was_pooled() -> None:
    network = VggA(widths=[2, 3, 2, 3, 4], units=5).network(3)
    program = Single().build(Task(network, Sgd(), (2, 32, 32), "float32", 0, 4, 4))
    plans = ProgramPlans(program, local_cluster(1), load_kernels()).plans(program.clients["train"].signature)
    (plan,) = plans.values()
    gates = [instruction for instruction in plan.instructions if instruction.op == "relu_gradient"]
    sizes = {gate.node: plan.slots[gate.outputs[0]].spec.shape[2:] for gate in gates}
    last = ["stage1_relu1", "stage2_relu1", "stage3_relu2", "stage4_relu2", "stage5_relu2"]
    found = [sizes[f"train/gradients/train/{name}/relu/relu_gradient"] for name in last]
    assert found == [(16, 16), (8, 8), (4, 4), (2, 2), (1, 1)]
