"""Compressed transfers: a tensor is truncated once and widened once per device; all readers see the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from runner.engine.compile.compile import compile_signature
from runner.engine.compile.passes.compression import compress_transfers
from runner.engine.compile.passes.rewriting import Roots
from runner.engine.compile.passes.transfers import insert_transfers
from runner.engine.compile.placement import place
from runner.engine.compile.program import Client
from runner.engine.graph import ops
from runner.engine.graph.device import local_cluster, worker_device
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import LayerStamp, Node
from runner.engine.graph.tensor import Tensor, TensorSpec
from runner.engine.graph.verify import verify
from runner.kernels.registry import Registry
from tests.engine.compile.verified_parts import verify_partition
from tests.engine.graph.random_graphs import TrainingSample, training_samples
from tests.engine.running import session
from tests.op_cases import Array

HERE, THERE, ELSEWHERE = (worker_device(k) for k in range(3))
X, HOME = Tensor("x"), Tensor("home")
NOTHING = Roots()
HIGH16 = local_cluster(2, compression="high16")


def cut(x: Array) -> Array:
    """The upper 16 bits of finite numbers."""
    return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)


def of_op(graph: Graph, op: str) -> list[Node]:
    return [node for node in graph if node.op == op]


def spread(dtype: str = "float32", shape: tuple[int, ...] = (3,)) -> Graph:
    """x on one device, read twice on each of two others and once on its own."""
    graph = Graph()
    with graph.device(HERE), graph.layer(LayerStamp("fc1", "dense")):
        x = ops.placeholder(graph, shape, dtype, name="x")
        ops.identity(graph, x, name="home")
    for k, device in enumerate((THERE, THERE, ELSEWHERE, ELSEWHERE)):
        with graph.device(device):
            ops.concat(graph, [x, x], axis=0, name=f"reader_{k}") if shape else ops.identity(graph, x)
    return graph


def test_tensor_is_truncated_once_and_widened_once_per_device() -> None:
    graph, moved = compress_transfers(spread(), NOTHING)
    verify(graph)
    assert moved == {}
    (narrow,) = of_op(graph, "truncate_to_bfloat16")
    assert (narrow.name, narrow.inputs, narrow.device) == ("compress/x_0", (X,), HERE)
    wide = {node.device: node[0] for node in of_op(graph, "cast")}
    assert list(wide) == [HERE, THERE, ELSEWHERE]
    assert len(of_op(graph, "cast")) == 3
    for name in ("home", *(f"reader_{k}" for k in range(4))):
        assert set(graph.nodes[name].inputs) == {wide[graph.nodes[name].device]}


def test_new_nodes_have_the_layer_of_the_truncated_tensor() -> None:
    graph, _ = compress_transfers(spread(), NOTHING)
    added = [node for node in graph if "compress/" in node.name]
    assert len(added) == 4
    assert {node.layer for node in added} == {LayerStamp("fc1", "dense")}


def test_half_of_the_bytes_are_sent() -> None:
    graph, _ = compress_transfers(spread(), NOTHING)
    assert [node.outputs for node in of_op(insert_transfers(graph), "recv")] == [(TensorSpec((3,), "bfloat16"),)] * 2


def test_tensor_is_widened_only_on_devices_that_read_it() -> None:
    source = Graph()
    with source.device(HERE):
        x = ops.placeholder(source, (3,), "float32", name="x")
    with source.device(THERE):
        ops.neg(source, x)
    graph, _ = compress_transfers(source, NOTHING)
    assert [node.device for node in of_op(graph, "cast")] == [THERE]


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float64", (3,)), ("bfloat16", (3,)), ("int64", (3,)), ("bool", (3,)), ("float32", (2, 0)), ("float32", ())],
)
def test_other_dtypes_empty_tensors_and_scalars_are_not_compressed(dtype: str, shape: tuple[int, ...]) -> None:
    source = spread(dtype, shape)
    graph, moved = compress_transfers(source, Roots.of([X]))
    assert (graph.nodes, moved) == (source.nodes, {})


def test_edges_on_one_device_and_control_edges_are_not_compressed() -> None:
    source = Graph()
    with source.device(HERE):
        x = ops.placeholder(source, (3,), "float32", name="x")
        ops.neg(source, x, name="first")
    with source.device(THERE), source.control_dependencies(["first"]):
        ops.fill(source, 0.0, (3,), "float32")
    graph, moved = compress_transfers(source, Roots.of([X, Tensor("first")]))
    assert (graph.nodes, moved) == (source.nodes, {})


def test_fetch_reads_the_widened_tensor() -> None:
    graph, moved = compress_transfers(spread(), Roots.of([X, HOME]))
    at_home = next(node for node in of_op(graph, "cast") if node.device == HERE)
    assert moved == {X: at_home[0]}


def test_value_of_a_variable_is_whole_on_its_device_and_truncated_elsewhere() -> None:
    source = Graph()
    with source.device(HERE):
        w = ops.variable(source, (3,), "float32", name="w")
        kept = ops.assign(source, w, ops.neg(source, w, name="update"), name="set")
        ops.identity(source, kept, name="home")
    with source.device(THERE):
        ops.add(source, w, kept, name="away")
    graph, moved = compress_transfers(source, Roots.of([w, kept]))
    verify(graph)
    assert moved == {}
    assert [graph.nodes[name].inputs for name in ("update", "set", "home")] == [(w,), (w, Tensor("update")), (kept,)]
    assert [node.device for node in of_op(graph, "cast")] == [THERE, THERE]
    assert {tensor.node for tensor in graph.nodes["away"].inputs} == {node.name for node in of_op(graph, "cast")}


@settings(max_examples=60)
@given(training_samples(dtype="float32", max_devices=3))
def test_every_compressible_tensor_is_sent_in_16_bits_and_a_second_run_changes_nothing(sample: TrainingSample) -> None:
    placed = place(sample.graph, local_cluster(sample.devices), lambda node: None)
    graph, moved = compress_transfers(placed, Roots.of(sample.fetches))
    verify(graph)
    sent = [node.outputs[0] for node in of_op(insert_transfers(graph), "recv")]
    assert [spec for spec in sent if spec.dtype == "float32" and spec.rank > 0 and spec.size > 0] == []
    again, nothing = compress_transfers(graph, Roots.of(moved.get(tensor, tensor) for tensor in sample.fetches))
    assert (again.nodes, nothing) == (graph.nodes, {})


def test_owner_and_others_read_the_same_bits(registry: Registry) -> None:
    source = spread()
    readers = [X, HOME, Tensor("reader_0"), Tensor("reader_2")]
    asked = Client("train", {str(t): t for t in readers}, feeds={"x": (X,)})
    x = np.array([1.001, -3e-39, 1 / 3], np.float32)
    with session(source, registry, asked, cluster=local_cluster(3, compression="high16")) as opened:
        came = opened.run("train", feeds={"x": x})
        assert opened.sent_bytes() == [2 * 3 * 2, 0, 0]
    # A fetch of a fed placeholder is the caller's value, truncated as for its other readers.
    for tensor in readers:
        np.testing.assert_array_equal(came[str(tensor)], np.resize(cut(x), came[str(tensor)].shape), strict=True)


def moving() -> tuple[Graph, Tensor, str]:
    """A variable whose value comes from another device, and is asked for on another one."""
    graph = Graph()
    with graph.device(HERE):
        x = ops.placeholder(graph, (3,), "float32", name="x")
    with graph.device(THERE):
        w = ops.variable(graph, (3,), "float32", name="w")
        put = ops.assign(graph, w, x, name="put")
    with graph.device(HERE):
        got = ops.concat(graph, [w], axis=0, name="got")
    return graph, got, put.node


def test_variables_are_saved_and_restored_bit_for_bit(registry: Registry) -> None:
    graph, got, put = moving()
    x = np.array([1.001, 2.002, 3.003], np.float32)
    clients = [
        Client("restore", targets=(put,), feeds={"x": (X,)}, exact=True),
        Client("save", {"w": got}, exact=True),
        Client("train", {"w": got}),
    ]
    with session(graph, registry, *clients, cluster=HIGH16) as opened:
        opened.run("restore", feeds={"x": x})
        np.testing.assert_array_equal(opened.run("save")["w"], x, strict=True)
        np.testing.assert_array_equal(opened.run("train")["w"], cut(x), strict=True)


def test_pass_runs_if_the_cluster_requests_it(registry: Registry) -> None:
    client = Client("train", {"home": HOME}, targets=("reader_0",), feeds={"x": (X,)})
    for compression, expected in (("none", 0), ("high16", 1)):
        seen: dict[str, Graph] = {}
        cluster = local_cluster(3, compression=compression)
        compiled = compile_signature(spread(), client.signature, cluster, registry, seen.__setitem__)
        assert ("compression" in seen) == bool(expected)
        assert len(of_op(seen["writes"], "truncate_to_bfloat16")) == expected
        verify_partition({device: part.graph for device, part in compiled.parts.items()})
