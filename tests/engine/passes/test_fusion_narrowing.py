"""Products read large weights as they are kept, where a kernel rounds them itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from runner.engine import ops
from runner.engine.graph import Graph
from runner.engine.passes.fusion_narrowing import SMALLEST_BYTES, fuse_narrowing
from runner.engine.passes.rewriting import Roots
from runner.engine.tensor import Tensor
from runner.kernels.registry import Registry
from tests.engine.fake_kernels import PLAIN, always, fake_kernel, fake_registry, reference_registry
from tests.engine.passes.exactness import assert_unchanged

NARROW = "bfloat16"
HERE, THERE = (f"/job:worker/task:{task}/device:cpu:0" for task in (0, 1))


class Sketch:
    """Weights, their cast, and what a dense layer has beside them."""

    def __init__(self, state: str = "float32", kept: str = NARROW) -> None:
        self.graph = Graph()
        self.w = ops.variable(self.graph, (6, 2), state, name="w")
        self.cast = ops.cast(self.graph, self.w, kept, name="cast")
        self.x, self.dy, self.bias = (self.input(name, kept, *shape) for name, shape in SHAPES.items())

    def input(self, name: str, dtype: str, *shape: int) -> Tensor:
        return ops.placeholder(self.graph, shape, dtype, name=name)

    def fused(self, *fetches: Tensor) -> Graph:
        """The graph after the pass, which computes the same bits and which the pass leaves alone from then on."""
        roots = Roots.of(fetches, ())
        result, moved = fuse_narrowing(self.graph, roots, smallest_bytes=0)
        assert not moved
        rng = np.random.default_rng(0)
        given = [node for node in self.graph if node.op in ("placeholder", "variable")]
        feeds = {node[0]: rng.standard_normal(node.outputs[0].shape).astype(node.outputs[0].dtype) for node in given}
        assert_unchanged(self.graph, result, moved, fetches, feeds)
        assert fuse_narrowing(result, roots, smallest_bytes=0)[0].nodes == result.nodes
        return result


SHAPES = {"x": (4, 6), "dy": (4, 2), "bias": (2,)}

PRODUCTS: dict[str, Callable[[Sketch], Tensor]] = {
    "forward": lambda s: ops.matmul(s.graph, s.x, s.cast, name="y"),
    "layer": lambda s: ops.matmul_fused(s.graph, s.x, s.cast, s.bias, relu=True, name="y"),
    "logits": lambda s: ops.matmul_fused(s.graph, s.x, s.cast, dtype="float32", name="y"),
    "backward": lambda s: ops.matmul(s.graph, s.dy, s.cast, transpose_b=True, name="y"),
}


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_product_reads_what_its_weights_are_a_cast_of(product: str) -> None:
    sketch = Sketch()
    y = PRODUCTS[product](sketch)
    before = sketch.graph.nodes["y"]
    after = sketch.fused(y).nodes["y"]
    assert after.op == "matmul_narrowed"
    assert after.inputs == (before.inputs[0], sketch.w, *before.inputs[2:])
    assert (after.outputs, after.attributes["dtype"]) == (before.outputs, before.outputs[0].dtype)
    assert after.attributes.items() >= before.attributes.items()


def test_every_product_of_a_weight_does() -> None:
    sketch = Sketch()
    forward, backward = PRODUCTS["layer"](sketch), ops.matmul(sketch.graph, sketch.dy, sketch.cast, transpose_b=True)
    result = sketch.fused(forward, backward)
    assert [node.inputs[1] for node in result if node.op == "matmul_narrowed"] == [sketch.w, sketch.w]
    assert "cast" in result  # until dead code is removed


STAY: dict[str, Callable[[Sketch], Tensor]] = {
    "no cast": lambda s: ops.matmul(s.graph, s.x, s.input("v", NARROW, 6, 2)),
    "the cast is the other factor": lambda s: ops.matmul(s.graph, s.cast, s.input("v", NARROW, 2, 3)),
    "x is turned": lambda s: ops.matmul(s.graph, s.input("v", NARROW, 6, 4), s.cast, transpose_a=True),
    "no product": lambda s: ops.add(s.graph, s.cast, s.input("v", NARROW, 6, 2)),
}


@pytest.mark.parametrize("stay", STAY)
def test_what_has_no_weights_to_round_stays(stay: str) -> None:
    sketch = Sketch()
    assert sketch.fused(STAY[stay](sketch)).nodes == sketch.graph.nodes


@pytest.mark.parametrize(("state", "kept"), [("float64", NARROW), ("float64", "float32"), ("int32", NARROW)])
def test_other_casts_stay(state: str, kept: str) -> None:
    sketch = Sketch(state, kept)
    assert sketch.fused(PRODUCTS["forward"](sketch)).nodes == sketch.graph.nodes


def test_a_cast_on_another_device_or_behind_others_stays() -> None:
    for changes in ({"device": THERE}, {"control_inputs": ("x",)}):
        sketch = Sketch()
        sketch.graph = _changed(sketch, **changes)
        y = PRODUCTS["forward"](sketch)
        assert fuse_narrowing(sketch.graph, Roots.of([y], ()), smallest_bytes=0)[0].nodes == sketch.graph.nodes


def _changed(sketch: Sketch, **changes: object) -> Graph:
    """The graph with its cast as it is said, behind all else."""
    result = Graph()
    for node in sorted(sketch.graph, key=lambda node: node.name == "cast"):
        result.insert(replace(node, **changes) if node.name == "cast" else node)  # type: ignore[arg-type]
    return result


def large_product(columns: int, registry: Registry | None = None) -> str:
    """Op of a product with weights (1024, columns), after the pass."""
    graph = Graph()
    with graph.device(HERE):
        w = ops.variable(graph, (1024, columns), "float32")
        x = ops.placeholder(graph, (2, 1024), NARROW)
        y = ops.matmul(graph, x, ops.cast(graph, w, NARROW), name="y")
    return fuse_narrowing(graph, Roots.of([y], ()), registry)[0].nodes["y"].op


def test_small_weights_stay() -> None:
    assert SMALLEST_BYTES == 4 * 1024 * 1024
    assert [large_product(columns) for columns in (1023, 1024)] == ["matmul", "matmul_narrowed"]


def test_only_what_has_a_faster_kernel_is_fused() -> None:
    faster = replace(fake_kernel("matmul_narrowed", always(PLAIN, PLAIN)), dtypes=frozenset({NARROW, "float32"}))
    assert large_product(1024, fake_registry(faster)) == "matmul_narrowed"
    assert large_product(1024, reference_registry()) == "matmul"
    assert large_product(1024, Registry()) == "matmul"
