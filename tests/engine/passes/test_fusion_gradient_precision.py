"""Casts to float32 become part of the sums of products that they alone read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from runner.engine import ops
from runner.engine.graph import Graph
from runner.engine.passes.fusion_gradient_precision import FUSED, fuse_gradient_precision
from runner.engine.passes.rewriting import Moved, Roots
from runner.engine.tensor import Tensor
from runner.engine.verify import verify
from tests.oracles import evaluate

FILTERS = {"weight_shape": (3, 2, 3, 3), "padding": (1, 1, 1, 1)}
THERE = "/job:worker/task:1/device:cpu:0"

Build = Callable[[Graph, str], list[Tensor]]


def _input(graph: Graph, name: str, dtype: str, *shape: int) -> Tensor:
    return ops.placeholder(graph, shape, dtype, name=name)


def _images(graph: Graph, dtype: str) -> tuple[Tensor, Tensor]:
    return _input(graph, "dy", dtype, 2, 3, 4, 4), _input(graph, "x", dtype, 2, 2, 4, 4)


def _rows(graph: Graph, dtype: str) -> tuple[Tensor, Tensor]:
    return _input(graph, "x", dtype, 4, 3), _input(graph, "dy", dtype, 4, 2)


SUMS: dict[str, Build] = {
    "matmul": lambda g, dtype: [ops.matmul(g, *_rows(g, dtype), transpose_a=True, name="sum")],
    "matmul_fused": lambda g, dtype: [
        ops.matmul_fused(g, *_rows(g, dtype), _input(g, "b", dtype, 2), transpose_a=True, name="sum")
    ],
    "matmul_bias_gradient": lambda g, dtype: list(ops.matmul_bias_gradient(g, *_rows(g, dtype), name="sum")),
    "conv2d_weight_gradient": lambda g, dtype: [
        ops.conv2d_weight_gradient(g, *_images(g, dtype), **FILTERS, name="sum")
    ],
    "conv2d_weight_bias_gradient": lambda g, dtype: list(
        ops.conv2d_weight_bias_gradient(g, *_images(g, dtype), **FILTERS, name="sum")
    ),
}


def _fused(graph: Graph, fetches: list[Tensor], targets: tuple[str, ...] = ()) -> tuple[Graph, Moved]:
    """The graph after the pass, which is legal and which the pass leaves alone from then on."""
    roots = Roots.of(fetches, targets)
    result, moved = fuse_gradient_precision(graph, roots)
    verify(result)
    assert fuse_gradient_precision(result, roots.after(moved))[0].nodes == result.nodes
    return result, moved


def test_every_sum_that_can_give_another_dtype_is_tried():
    assert SUMS.keys() == FUSED.keys()


@pytest.mark.parametrize("op", SUMS)
def test_a_sum_is_given_as_float32(op: str):
    graph = Graph()
    outputs = SUMS[op](graph, "bfloat16")
    casts = [ops.cast(graph, output, "float32") for output in outputs]
    result, moved = _fused(graph, casts)
    node = result.nodes["sum"]
    assert (node.op, {spec.dtype for spec in node.outputs}) == (FUSED[op], {"float32"})
    assert [moved[cast] for cast in casts] == list(node.tensors)
    assert "cast" not in {each.op for each in result}
    rng = np.random.default_rng(0)
    inputs = [each for each in graph if each.op == "placeholder"]
    feeds = {each[0]: rng.standard_normal(each.outputs[0].shape).astype("bfloat16") for each in inputs}
    for came, rounded in zip(evaluate(result, node.tensors, feeds), evaluate(graph, casts, feeds), strict=True):
        np.testing.assert_array_equal(came.astype("bfloat16").astype("float32"), rounded)
        assert (came != rounded).any(), "a rounding is left out"


@pytest.mark.parametrize("op", SUMS)
def test_one_cast_of_two_outputs_is_enough_where_nobody_reads_the_other(op: str):
    graph = Graph()
    cast = ops.cast(graph, SUMS[op](graph, "bfloat16")[0], "float32")
    result, _ = _fused(graph, [cast])
    assert {spec.dtype for spec in result.nodes["sum"].outputs} == {"float32"}


def _bias_stays(graph: Graph, outputs: list[Tensor]) -> list[Tensor]:
    return [ops.cast(graph, outputs[0], "float32"), ops.neg(graph, outputs[1])]


def _fetched(graph: Graph, outputs: list[Tensor]) -> list[Tensor]:
    return [ops.cast(graph, outputs[0], "float32"), outputs[0]]


def _elsewhere(graph: Graph, outputs: list[Tensor]) -> list[Tensor]:
    with graph.device(THERE):
        return [ops.cast(graph, outputs[0], "float32")]


def _to_another_dtype(graph: Graph, outputs: list[Tensor]) -> list[Tensor]:
    return [ops.cast(graph, outputs[0], "float64")]


def _waiting(graph: Graph, outputs: list[Tensor]) -> list[Tensor]:
    other = ops.fill(graph, 1.0, (), "float32", name="other")
    with graph.control_dependencies([other.node]):
        return [ops.cast(graph, outputs[0], "float32")]


def _unread(graph: Graph, outputs: list[Tensor]) -> list[Tensor]:
    return [ops.neg(graph, _input(graph, "z", "float32", 2))]


@pytest.mark.parametrize("read", [_bias_stays, _fetched, _elsewhere, _to_another_dtype, _waiting, _unread])
def test_a_sum_that_is_needed_in_bfloat16_stays(read: Callable[[Graph, list[Tensor]], list[Tensor]]):
    graph = Graph()
    fetches = read(graph, SUMS["matmul_bias_gradient"](graph, "bfloat16"))
    result, moved = _fused(graph, fetches)
    assert (result.nodes, moved) == (graph.nodes, {})


def test_a_cast_that_is_a_target_stays():
    graph = Graph()
    cast = ops.cast(graph, SUMS["matmul"](graph, "bfloat16")[0], "float32")
    result, moved = _fused(graph, [], (cast.node,))
    assert (result.nodes, moved) == (graph.nodes, {})


def test_other_precisions_are_left_alone():
    graph = Graph()
    cast = ops.cast(graph, SUMS["matmul"](graph, "float32")[0], "float64")
    assert _fused(graph, [cast])[0].nodes == graph.nodes
