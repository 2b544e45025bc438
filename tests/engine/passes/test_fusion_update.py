"""Gradients of large weights go into their update, if nobody else wants to see them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine import ops
from runner.engine.graph import Graph, Node
from runner.engine.passes.fusion_update import SMALLEST_BYTES, fuse_updates
from runner.engine.passes.optimize import FUSIONS, optimize
from runner.engine.passes.order_writes import order_writes
from runner.engine.passes.rewriting import Moved, Roots
from runner.engine.tensor import Tensor
from runner.engine.verify import verify
from runner.kernels.elementwise import parse
from runner.kernels.registry import Registry
from runner.optimizers.adam import Adam
from runner.optimizers.momentum import Momentum
from tests.engine.fake_kernels import PLAIN, always, fake_kernel, fake_registry, reference_registry
from tests.engine.passes.exactness import assert_unchanged, counts, roots_of
from tests.engine.passes.training_graphs import NETWORKS, training_step
from tests.engine.random_graphs import TrainingSample, training_samples

HERE, THERE = (f"/job:worker/task:{task}/device:cpu:0" for task in (0, 1))
GRADIENT = 1
MOMENTUM = parse("mul 0 3; sub 4 1; add 2 5", 4, (6, 5))
"""Inputs: velocity, gradient, weights, momentum. Outputs: weights, velocity."""


class Sketch:
    """A dense layer's x and dy, and the update of its weights."""

    def __init__(self, dtype: str = "float64", state: str = "float64") -> None:
        self.graph = Graph()
        self.state = state
        self.x, self.dy = self.input("x", dtype, 4, 3), self.input("dy", dtype, 4, 2)
        self.w, self.v = (ops.variable(self.graph, (3, 2), state, name=name) for name in ("w", "v"))
        self.rate = self.input("rate", state)

    def input(self, name: str, dtype: str, *shape: int) -> Tensor:
        return ops.placeholder(self.graph, shape, dtype, name=name)

    def gradients(self) -> tuple[Tensor, Tensor]:
        return ops.matmul_bias_gradient(self.graph, self.x, self.dy, dtype=self.state, name="dw")

    def update(self, dw: Tensor, velocity: Tensor | None = None) -> tuple[Tensor, ...]:
        inputs = [velocity or self.v, dw, self.w, self.rate]
        return ops.elementwise(self.graph, inputs, MOMENTUM, name="update")

    def assign(self, new_w: Tensor, new_v: Tensor) -> None:
        ops.assign(self.graph, self.w, new_w, name="write_w")
        ops.assign(self.graph, self.v, new_v, name="write_v")

    def fused(self, *fetches: Tensor, targets: tuple[str, ...] = ()) -> tuple[Graph, Moved]:
        """The graph after the pass, which computes the same and which the pass leaves alone from then on."""
        roots = Roots.of(fetches, targets)
        result, moved = fuse_updates(self.graph, roots, smallest_bytes=0)
        rng = np.random.default_rng(0)
        inputs = [node for node in self.graph if node.op in ("placeholder", "variable")]
        feeds = {node[0]: rng.standard_normal(node.outputs[0].shape).astype(node.outputs[0].dtype) for node in inputs}
        assert_unchanged(self.graph, result, moved, fetches, feeds)
        assert fuse_updates(result, roots.after(moved), smallest_bytes=0)[0].nodes == result.nodes
        return result, moved

    def stays(self, *fetches: Tensor, targets: tuple[str, ...] = ()) -> bool:
        result, moved = self.fused(*fetches, targets=targets)
        return (result.nodes, moved) == (self.graph.nodes, {})


@pytest.fixture
def sketch() -> Sketch:
    return Sketch()


def position(graph: Graph, name: str) -> int:
    return list(graph.nodes).index(name)


def test_the_update_of_weights_takes_their_gradient_with_it(sketch: Sketch) -> None:
    dw, db = sketch.gradients()
    late = ops.tanh(sketch.graph, db, name="late")
    new = sketch.update(dw)
    sketch.assign(*new)
    result, _ = sketch.fused(*new, late, db)
    node = result.nodes["update"]
    assert (node.op, node.inputs) == ("matmul_elementwise", (sketch.x, sketch.dy, sketch.v, sketch.w, sketch.rate))
    assert node.attributes == {
        "transpose_a": True,
        "transpose_b": False,
        "dtype": "float64",
        "program": MOMENTUM.text,
        "outputs": MOMENTUM.outputs,
        "product": GRADIENT,
    }
    assert node.outputs == sketch.graph.nodes["update"].outputs
    assert "dw" not in result


def test_the_gradient_of_the_bias_stays_where_it_was(sketch: Sketch) -> None:
    dw, db = sketch.gradients()
    ops.tanh(sketch.graph, db, name="late")
    result, moved = sketch.fused(*sketch.update(dw), Tensor("late"))
    total = result.nodes["dw/reduce_sum"]
    assert (total.inputs, total.attributes) == ((sketch.dy,), {"axes": (0,), "keepdims": False})
    assert moved == {db: total[0]}
    assert result.nodes["late"].inputs == (total[0],)
    assert position(result, total.name) == position(sketch.graph, "dw")


@pytest.mark.parametrize(("dtype", "state", "casts"), [("bfloat16", "float32", 2), ("bfloat16", "bfloat16", 0)])
def test_bfloat16_is_summed_and_rounded_as_it_was(dtype: str, state: str, casts: int) -> None:
    sketch = Sketch(dtype, state)
    dw, db = sketch.gradients()
    result, moved = sketch.fused(*sketch.update(dw), db)
    assert result.spec(moved[db]) == sketch.graph.spec(db)
    assert (counts(result)["cast"], counts(result)["reduce_sum"]) == (casts, 1)


def test_names_that_are_taken_are_left_to_their_nodes(sketch: Sketch) -> None:
    dw, db = sketch.gradients()
    ops.tanh(sketch.graph, sketch.x, name="dw/reduce_sum")
    _, moved = sketch.fused(*sketch.update(dw), db)
    assert moved == {db: Tensor("dw/reduce_sum_1")}


PRODUCTS: dict[str, Callable[[Sketch], Tensor]] = {
    "matmul": lambda s: ops.matmul(s.graph, s.x, s.dy, transpose_a=True),
    "matmul_fused": lambda s: ops.matmul_fused(s.graph, s.x, s.dy, transpose_a=True),
}


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_a_gradient_without_bias_is_taken_too(sketch: Sketch, product: Callable[[Sketch], Tensor]) -> None:
    result, moved = sketch.fused(*sketch.update(product(sketch)))
    assert counts(result) == {"placeholder": 3, "variable": 2, "matmul_elementwise": 1}
    assert moved == {}


OTHERS: dict[str, Callable[[Sketch], Tensor]] = {
    "a product of plain factors": lambda s: ops.matmul(
        s.graph, s.input("a", s.state, 3, 5), s.input("b", s.state, 5, 2)
    ),
    "a gradient of inputs": lambda s: ops.matmul(
        s.graph, s.input("a", s.state, 3, 5), s.input("b", s.state, 2, 5), transpose_b=True
    ),
    "relu": lambda s: ops.matmul_fused(s.graph, s.x, s.dy, transpose_a=True, relu=True),
    "bias": lambda s: ops.matmul_fused(s.graph, s.x, s.dy, s.input("bias", s.state, 2), transpose_a=True),
    "no product": lambda s: ops.tanh(s.graph, s.w),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_is_more_or_less_than_a_weight_gradient_stays(sketch: Sketch, other: Callable[[Sketch], Tensor]) -> None:
    assert sketch.stays(*sketch.update(other(sketch)))


def test_a_gradient_that_somebody_else_reads_stays(sketch: Sketch) -> None:
    dw, _ = sketch.gradients()
    new = sketch.update(dw)
    assert sketch.stays(*new, ops.square(sketch.graph, dw))


def test_a_gradient_that_is_fetched_stays(sketch: Sketch) -> None:
    dw, _ = sketch.gradients()
    assert sketch.stays(*sketch.update(dw), dw)


def test_a_gradient_that_must_go_on_to_exist_stays(sketch: Sketch) -> None:
    dw, _ = sketch.gradients()
    new = sketch.update(dw)
    assert sketch.stays(*new, targets=("dw",))
    with sketch.graph.control_dependencies(["dw"]):
        ops.tanh(sketch.graph, sketch.x)
    assert sketch.stays(*new)


def test_a_gradient_that_is_read_twice_stays(sketch: Sketch) -> None:
    dw, _ = sketch.gradients()
    assert sketch.stays(*sketch.update(dw, velocity=dw))


def test_an_update_by_a_single_op_stays(sketch: Sketch) -> None:
    dw, _ = sketch.gradients()
    assert sketch.stays(ops.sub(sketch.graph, sketch.w, dw))


def test_parts_of_a_gradient_stay_products(sketch: Sketch) -> None:
    """Of weights that two layers share, or of two shares of a batch."""
    dw, _ = sketch.gradients()
    second = ops.matmul(sketch.graph, sketch.x, sketch.dy, transpose_a=True, name="second")
    assert sketch.stays(*sketch.update(dw, velocity=second))


def test_devices_are_not_crossed(sketch: Sketch) -> None:
    dw, _ = sketch.gradients()
    with sketch.graph.device(THERE):
        new = sketch.update(dw)
    assert sketch.stays(*new)


def test_a_gradient_does_not_wait_for_one_from_another_device(sketch: Sketch) -> None:
    with sketch.graph.device(THERE):
        other = ops.tanh(sketch.graph, sketch.w)
    dw, _ = sketch.gradients()
    assert sketch.stays(*sketch.update(dw, velocity=other))


def test_a_scalar_may_come_from_another_device(sketch: Sketch) -> None:
    with sketch.graph.device(THERE):
        sketch.rate = ops.square(sketch.graph, sketch.rate)
    result, _ = sketch.fused(*sketch.update(sketch.gradients()[0]))
    assert result.nodes["update"].op == "matmul_elementwise"


def test_what_either_waited_for_is_waited_for(sketch: Sketch) -> None:
    graph = sketch.graph
    for name in ("first", "second"):
        ops.tanh(graph, sketch.x, name=name)
    with graph.control_dependencies(["first"]):
        dw, db = sketch.gradients()
    with graph.control_dependencies(["second"]):
        new = sketch.update(dw)
    result, moved = sketch.fused(*new, db)
    assert set(result.nodes["update"].control_inputs) == {"first", "second"}
    assert result.nodes[moved[db].node].control_inputs == ("first",)


def test_a_product_that_stays_in_a_cache_stays_a_node() -> None:
    for columns, op in ((1023, "elementwise"), (1024, "matmul_elementwise")):
        assert (SMALLEST_BYTES // 1024 // 4, large_update(columns, "float32", None).op) == (1024, op)


def large_update(columns: int, dtype: str, registry: Registry | None) -> Node:
    """The update of weights (1024, columns), after the pass."""
    graph = Graph()
    with graph.device(HERE):
        x, dy = (ops.placeholder(graph, shape, dtype) for shape in ((2, 1024), (2, columns)))
        w = ops.variable(graph, (1024, columns), dtype, name="w")
        dw = ops.matmul(graph, x, dy, transpose_a=True)
        new = ops.elementwise(graph, [w, dw], parse("mul 1 #0.5; sub 0 2", 2, (3,)), name="update")
    return fuse_updates(graph, Roots.of(new), registry)[0].nodes["update"]


def test_a_registry_is_asked_whether_it_has_more_than_the_reference() -> None:
    faster = fake_registry(fake_kernel("matmul_elementwise", always(PLAIN, PLAIN)))
    assert large_update(1024, "float32", faster).op == "matmul_elementwise"
    assert large_update(1024, "bfloat16", faster).op == "elementwise"
    assert large_update(1024, "float32", reference_registry()).op == "elementwise"
    assert large_update(1024, "float32", Registry()).op == "elementwise"


def test_an_update_in_place_waits_for_everyone_who_reads_the_weights(sketch: Sketch) -> None:
    dw, _ = sketch.gradients()
    sketch.assign(*sketch.update(dw))
    ops.matmul(sketch.graph, sketch.dy, sketch.w, transpose_b=True, name="dx")
    result, _ = sketch.fused(Tensor("dx"))
    ordered = order_writes(result)
    verify(ordered)
    assert ordered.nodes["update"].control_inputs == ("dx",)
    assert position(ordered, "dx") < position(ordered, "update")
    assert not any(ordered.nodes[name].control_inputs for name in ("write_w", "write_v"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("optimizer", [Momentum(weight_decay=1e-3), Adam()], ids=["momentum", "adam"])
def test_a_training_step_changes_no_bit(optimizer: Momentum | Adam, dtype: str) -> None:
    step = training_step(NETWORKS["lenet"], optimizer, dtype)
    graph, moved = optimize(step.graph, step.roots, FUSIONS)
    roots = step.roots.after(moved)
    result, again = fuse_updates(graph, roots, smallest_bytes=0)
    assert_unchanged(graph, result, again, sorted(roots.fetches), step.feeds)
    assert counts(result)["matmul_elementwise"] == counts(graph)["matmul_bias_gradient"] == 2
    assert counts(result)["matmul_bias_gradient"] == 0


@settings(max_examples=100)
@given(st.sampled_from(["float64", "float32"]).flatmap(lambda dtype: training_samples(dtype=dtype)))
def test_no_bit_changes_and_there_is_no_more_to_do(sample: TrainingSample) -> None:
    graph, moved = optimize(sample.graph, roots_of(sample.graph, sample.fetches), FUSIONS)
    fetches = [moved.get(tensor, tensor) for tensor in sample.fetches]
    roots = roots_of(graph, fetches)
    result, again = fuse_updates(graph, roots, smallest_bytes=0)
    assert_unchanged(graph, result, again, fetches, sample.feeds)
    assert fuse_updates(result, roots.after(again), smallest_bytes=0)[0].nodes == result.nodes
