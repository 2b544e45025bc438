"""Compressed transfers: a tensor is truncated once and widened once per device; all readers see the same bits."""

import numpy as np
import pytest
from hypothesis import given, settings

from runner.engine.compile.compile import compile_signature
from runner.engine.compile.passes.rewriting import Roots
from runner.engine.compile.passes.transfers import compress_transfers, insert_transfers
from runner.engine.compile.placement import place
from runner.engine.compile.program import Client
from runner.engine.graph import ops
from runner.engine.graph.device import device_slug, local_cluster
from runner.engine.graph.graph import Graph
from runner.engine.graph.serialize import verify
from runner.engine.graph.tensor import Node, Tensor
from runner.kernels.registry import Registry
from tests.engine.compile.passes.graph_text import DEVICES, FAR, HERE, THERE, Case, check
from tests.engine.compile.verified_parts import verify_partition
from tests.engine.graph.random_graphs import TrainingSample, training_samples
from tests.engine.running import session
from tests.samples import Array

X, HOME = Tensor("x"), Tensor("home")
NOTHING = Roots()
HIGH16 = local_cluster(2, compression="high16")


def cut(x: Array) -> Array:
    """The upper 16 bits of finite numbers."""
    return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)


def of_op(graph: Graph, op: str) -> list[Node]:
    return [node for node in graph if node.op == op]


def spread() -> Graph:
    """x on one device, read twice on each of two others and once on its own."""
    graph = Graph()
    with graph.device(HERE):
        x = ops.placeholder(graph, (3,), "float32", name="x")
        ops.identity(graph, x, name="home")
    for k, device in enumerate((THERE, THERE, FAR, FAR)):
        with graph.device(device):
            ops.concat(graph, [x, x], axis=0, name=f"reader_{k}")
    return graph


def seen(tensor: str, device: str) -> str:
    """The statement that widens a truncated tensor on a device."""
    slug = device_slug(DEVICES[device]).replace("/", "__")
    return f"decompress__{tensor}__{slug} = cast(compress__{tensor}, dtype='float32', on='{device}')"


def name_of(statement: str) -> str:
    return statement.split()[0]


X_HERE, X_THERE, X_FAR = (seen("x_0", device) for device in DEVICES)
SENT = "compress__x_0 = truncate_to_bfloat16(x, on='here')"
READ = """x = input(3, on='here'); home = identity(x, on='here'); a = neg(x, on='there'); b = exp(x, on='there')
    c = concat(x, x, axis=0, on='far')"""
STATE = "w = weights(3, on='here'); update = neg(w, on='here'); set = assign(w, update, on='here')"
W, SET = seen("w_0", "there"), seen("set_0", "there")
CASES = {
    "a tensor is truncated once and widened once per device": Case(
        READ,
        f"""x = input(3, on='here'); {SENT}; {X_HERE}; home = identity({name_of(X_HERE)}, on='here')
        {X_THERE}; a = neg({name_of(X_THERE)}, on='there'); b = exp({name_of(X_THERE)}, on='there')
        {X_FAR}; c = concat({name_of(X_FAR)}, {name_of(X_FAR)}, axis=0, on='far')""",
        fetch="x home c",
    ),
    "only on devices that read it": Case(
        "x = input(3, on='here'); a = neg(x, on='there')",
        f"x = input(3, on='here'); {SENT}; {X_THERE}; a = neg({name_of(X_THERE)}, on='there')",
    ),
    "new nodes have the layer of the truncated tensor": Case(
        "x = input(3, on='here', layer='fc1'); a = neg(x, on='there')",
        f"""x = input(3, on='here', layer='fc1'); {SENT[:-1]}, layer='fc1'); {X_THERE[:-1]}, layer='fc1')
        a = neg({name_of(X_THERE)}, on='there')""",
    ),
    "the value of a variable is whole on its device": Case(
        f"{STATE}; home = identity(set, on='here'); away = add(w, set, on='there')",
        f"""{STATE}; home = identity(set, on='here')
        compress__w_0 = truncate_to_bfloat16(w, on='here'); {W}
        compress__set_0 = truncate_to_bfloat16(set, on='here'); {SET}
        away = add({name_of(W)}, {name_of(SET)}, on='there')""",
        fetch="w set away",
    ),
    "a tensor of one number": Case(
        "x = input(1, on='here'); a = neg(x, on='there')",
        f"x = input(1, on='here'); {SENT}; {X_THERE}; a = neg({name_of(X_THERE)}, on='there')",
    ),
    "edges on one device and control edges": Case(
        "x = input(3, on='here'); first = neg(x, on='here'); e = input(3, on='there', after='first')", fetch="x first e"
    ),
    **{
        f"{dtype} of shape {shape}": Case(
            f"x = input{shape}; home = identity(x); a = identity(x, on='there')", dtype=dtype, fetch="x a"
        )
        for dtype, shape in [
            *((dtype, (3,)) for dtype in ("float64", "bfloat16", "int64", "bool")),
            *(("float32", shape) for shape in ((2, 0), ())),
        ]
    },
}


@pytest.mark.parametrize("name", CASES)
def test_transfers_are_compressed_as_the_table_says(name: str) -> None:
    check(CASES[name], compress_transfers, same_bits=False)


def test_fetch_reads_the_widened_tensor() -> None:
    graph, moved = compress_transfers(spread(), Roots.of([X, HOME]))
    at_home = next(node for node in of_op(graph, "cast") if node.device == HERE)
    assert moved == {X: at_home[0]}


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
