"""Groups of element-wise nodes: as large as they may be, in one piece, and with every value that is needed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from runner.engine.compile.passes.fusion_elementwise import MAX_STEPS, fuse_elementwise
from runner.engine.compile.passes.rewriting import Moved, Roots
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import LayerStamp, Node
from runner.engine.graph.tensor import Tensor
from runner.kernels.elementwise import FUNCTIONS
from tests.engine.compile.passes.exactness import assert_unchanged, counts, roots_of

THERE = "/job:worker/task:1/device:cpu:0"


class Sketch:
    """A graph with three tensors of one shape and a scalar."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.a, self.b, self.c = (self.input(name, 2, 3) for name in "abc")
        self.rate = self.input("rate")

    def input(self, name: str, *shape: int, dtype: str = "float32") -> Tensor:
        return ops.placeholder(self.graph, shape, dtype, name=name)

    def fused(self, *fetches: Tensor) -> tuple[Graph, Moved]:
        """The graph after the pass, which computes the same and which the pass leaves alone from then on."""
        roots = roots_of(self.graph, fetches)
        result, moved = fuse_elementwise(self.graph, roots)
        rng = np.random.default_rng(0)
        inputs = [node for node in self.graph if node.op in ("placeholder", "variable")]
        feeds = {node[0]: rng.standard_normal(node.outputs[0].shape).astype(node.outputs[0].dtype) for node in inputs}
        assert_unchanged(self.graph, result, moved, fetches, feeds)
        assert fuse_elementwise(result, roots.after(moved))[0].nodes == result.nodes
        return result, moved


@pytest.fixture
def sketch() -> Sketch:
    return Sketch()


def program(node: Node) -> tuple[str, tuple[int, ...]]:
    attributes: Mapping[str, object] = node.attributes
    assert node.op == "elementwise"
    return str(attributes["program"]), tuple(node.attributes["outputs"])


def test_a_chain_is_one_node_under_the_name_of_its_last(sketch: Sketch) -> None:
    graph = sketch.graph
    y = ops.sub(graph, sketch.a, ops.mul(graph, sketch.b, sketch.rate), name="y")
    result, moved = sketch.fused(y)
    assert moved == {}
    assert result.nodes["y"].inputs == (sketch.b, sketch.rate, sketch.a)
    assert program(result.nodes["y"]) == ("mul 0 1; sub 2 3", (4,))
    assert counts(result) == {"placeholder": 4, "elementwise": 1}


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_every_function_of_the_language_joins(sketch: Sketch, function: str) -> None:
    arity, _ = FUNCTIONS[function]
    positive = ops.abs(sketch.graph, sketch.a)
    y = sketch.graph.add(function, [positive, sketch.b][:arity], name="y")[0]
    assert program(sketch.fused(y)[0].nodes["y"])[0] == f"abs 0; {function} {'2 1' if arity == 2 else '1'}"


def test_a_sum_of_many_is_taken_from_left_to_right(sketch: Sketch) -> None:
    total = ops.add_n(sketch.graph, [sketch.a, sketch.b, sketch.a, sketch.c])
    y = ops.square(sketch.graph, total, name="y")
    assert program(sketch.fused(y)[0].nodes["y"]) == ("add 0 1; add 3 0; add 4 2; square 5", (6,))


def test_fills_of_any_shape_are_literals(sketch: Sketch) -> None:
    graph = sketch.graph
    x = ops.scale(graph, sketch.a, 0.1)
    x = ops.add(graph, ops.fill(graph, -0.0, (3,), "float32"), x)
    y = ops.maximum(graph, x, ops.fill(graph, float("-inf"), (2, 3), "float32"), name="y")
    result, _ = sketch.fused(y)
    assert result.nodes["y"].inputs == (sketch.a,)
    assert program(result.nodes["y"])[0] == "mul 0 #0.1; add #-0.0 1; maximum 2 #-inf"


def test_a_chain_of_scalars_is_a_group_of_its_own(sketch: Sketch) -> None:
    graph = sketch.graph
    rate = ops.neg(graph, ops.square(graph, sketch.rate), name="rate_2")
    y = ops.abs(graph, ops.mul(graph, sketch.a, rate), name="y")
    result, _ = sketch.fused(y)
    assert program(result.nodes["rate_2"])[0] == "square 0; neg 1"
    assert result.nodes["y"].inputs == (sketch.a, rate)


def test_a_single_node_stays_as_it_is(sketch: Sketch) -> None:
    total = ops.add_n(sketch.graph, [sketch.a, sketch.b, sketch.c])
    y = ops.neg(sketch.graph, ops.exp(sketch.graph, total))
    result, _ = sketch.fused(y)
    assert result.nodes == sketch.graph.nodes


def test_a_value_that_is_read_outside_is_where_a_group_ends(sketch: Sketch) -> None:
    graph = sketch.graph
    inner = ops.neg(graph, ops.square(graph, sketch.a), name="inner")
    y = ops.abs(graph, ops.add(graph, inner, sketch.b), name="y")
    total = ops.reduce_sum(graph, inner)
    result, _ = sketch.fused(y, total)
    assert program(result.nodes["inner"])[0] == "square 0; neg 1"
    assert result.nodes["y"].inputs == (inner, sketch.b)


def test_a_detour_outside_makes_no_circle(sketch: Sketch) -> None:
    """neg is read by add, both directly and through exp: joined with add it would wait for itself."""
    graph = sketch.graph
    inner = ops.neg(graph, sketch.a, name="inner")
    y = ops.abs(graph, ops.add(graph, inner, ops.exp(graph, inner)), name="y")
    result, _ = sketch.fused(y)
    assert result.nodes["inner"].op == "neg"
    assert program(result.nodes["y"])[0] == "add 0 1; abs 2"


def test_readers_in_two_groups_share_a_value_that_is_in_neither(sketch: Sketch) -> None:
    graph = sketch.graph
    shared = ops.neg(graph, sketch.a, name="shared")
    ends = [ops.abs(graph, ops.add(graph, shared, other)) for other in (sketch.b, sketch.c)]
    result, _ = sketch.fused(*ends)
    assert result.nodes["shared"].op == "neg"
    assert counts(result)["elementwise"] == 2


def test_fetched_values_are_outputs(sketch: Sketch) -> None:
    graph = sketch.graph
    inner = ops.square(graph, sketch.a, name="inner")
    y = ops.neg(graph, ops.abs(graph, inner), name="y")
    result, moved = sketch.fused(inner, y)
    assert moved == {inner: Tensor("y", 1)}
    assert program(result.nodes["y"]) == ("square 0; abs 1; neg 2", (3, 1))


def test_assigned_values_are_outputs_and_their_assigns_come_later(sketch: Sketch) -> None:
    graph = sketch.graph
    v, w = (ops.variable(graph, (2, 3), "float32", name=name) for name in "vw")
    new_v = ops.sub(graph, ops.scale(graph, v, 0.9), sketch.a)
    ops.assign(graph, v, new_v, name="write_v")
    ops.assign(graph, w, ops.add(graph, w, new_v, name="new_w"), name="write_w")
    result, moved = sketch.fused()
    assert moved == {new_v: Tensor("new_w", 1)}
    assert list(result.nodes)[-3:] == ["new_w", "write_v", "write_w"]
    assert result.nodes["write_v"].inputs == (v, Tensor("new_w", 1))
    assert result.nodes["write_v"].colocate_with == ("v",)


@pytest.mark.parametrize("obstacle", ["a reader", "somebody who waits"])
def test_an_assign_that_is_needed_reads_the_end_of_a_group(sketch: Sketch, obstacle: str) -> None:
    graph = sketch.graph
    v = ops.variable(graph, (2, 3), "float32", name="v")
    inner = ops.square(graph, ops.neg(graph, sketch.a), name="inner")
    written = ops.assign(graph, v, inner, name="write")
    if obstacle == "a reader":
        outside = ops.exp(graph, written)
    else:
        with graph.control_dependencies(["write"]):
            outside = ops.exp(graph, sketch.b)
    y = ops.abs(graph, ops.add(graph, inner, outside), name="y")
    result, _ = sketch.fused(y)
    assert program(result.nodes["inner"])[0] == "neg 0; square 1"
    assert result.nodes["y"].inputs == (inner, outside)


def test_what_others_wait_for_keeps_its_name(sketch: Sketch) -> None:
    graph = sketch.graph
    inner = ops.neg(graph, ops.square(graph, sketch.a), name="inner")
    with graph.control_dependencies(["inner"]):
        ops.exp(graph, sketch.b, name="late")
    y = ops.abs(graph, inner, name="y")
    result, _ = sketch.fused(y, Tensor("late"))
    assert program(result.nodes["inner"])[0] == "square 0; neg 1"
    assert result.nodes["y"].op == "abs"


def test_a_target_keeps_its_name(sketch: Sketch) -> None:
    inner = ops.square(sketch.graph, sketch.a, name="inner")
    y = ops.abs(sketch.graph, inner, name="y")
    assert fuse_elementwise(sketch.graph, Roots.of([y], ["inner"]))[0].nodes == sketch.graph.nodes


def test_devices_shapes_and_dtypes_are_not_mixed(sketch: Sketch) -> None:
    graph = sketch.graph
    with graph.device(THERE):
        there = ops.neg(graph, sketch.a)
    here = ops.abs(graph, there)
    row = ops.neg(graph, sketch.input("row", 3))
    spread = ops.add(graph, sketch.a, row)
    count = ops.neg(graph, ops.neg(graph, sketch.input("count", 2, dtype="int64")))
    widened = ops.mul(graph, ops.neg(graph, sketch.rate), ops.fill(graph, 2.0, (2, 3), "float32"))
    result, _ = sketch.fused(here, ops.abs(graph, spread), count, ops.abs(graph, widened))
    assert "elementwise" not in counts(result)


def test_a_program_has_a_limit(sketch: Sketch) -> None:
    y = sketch.a
    for _ in range(2 * MAX_STEPS + 3):
        y = ops.relu(sketch.graph, y)
    lengths = [len(program(node)[0].split("; ")) for node in sketch.fused(y)[0] if node.op == "elementwise"]
    assert lengths == [3, MAX_STEPS, MAX_STEPS]


def test_layer_device_and_what_parts_waited_for(sketch: Sketch) -> None:
    graph = sketch.graph
    with graph.device(THERE):
        with graph.layer(LayerStamp("fc1", "dense")), graph.control_dependencies(["b"]):
            inner = ops.square(graph, sketch.a)
        with graph.layer(LayerStamp("fc2", "dense")), graph.control_dependencies(["c"]):
            ops.neg(graph, inner, name="y")
    node = sketch.fused(Tensor("y"))[0].nodes["y"]
    assert (node.device, node.layer) == (THERE, LayerStamp("fc2", "dense"))
    assert set(node.control_inputs) == {"b", "c"}
