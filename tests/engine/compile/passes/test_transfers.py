"""Edges between devices become one send and one recv per tensor and destination; compression is optional."""

import numpy as np
import pytest
from hypothesis import given, settings

from runner.engine.compile.compile import compile_signature
from runner.engine.compile.passes.rewriting import Roots
from runner.engine.compile.passes.transfers import compress_transfers, insert_transfers, transfer_key
from runner.engine.compile.placement import place
from runner.engine.compile.program import Client
from runner.engine.compile.schedule import schedule, split
from runner.engine.graph import Graph, Node, Tensor, local_cluster
from runner.engine.graph.device import device_slug
from runner.engine.graph.verify import verify
from runner.kernels.registry import Registry
from tests.engine.compile.passes.graph_text import DEVICES, HERE, Case, Text, check
from tests.engine.compile.verified_parts import verify_partition
from tests.engine.graph.random_graphs import Sample, samples, training_samples
from tests.engine.running import run_once, session
from tests.oracles import evaluate
from tests.samples import Array

X, HOME = Tensor("x"), Tensor("home")
SLUGS = {device: device_slug(name) for device, name in DEVICES.items()}
READ = """x = input(3, on='here'); home = identity(x, on='here'); a = neg(x, on='there'); b = exp(x, on='there')
    c = concat(x, x, axis=0, on='far')"""


def of_op(graph: Graph, op: str) -> list[Node]:
    return [node for node in graph if node.op == op]


def sent(name: str, to: str, node: str = "", port: int = 0, shape: tuple[int, ...] = (3,), layer: str = "") -> str:
    """Return statements that send a tensor from ``here`` to a device. node: the tensor's node, by default ``name``."""
    node = node or name
    place = f"{node}_{port}__{SLUGS[to]}"
    key, more = transfer_key(Tensor(node.replace("__", "/"), port), DEVICES[to]), f", layer='{layer}'" * bool(layer)
    send = f"send__{place} = send({name}, key='{key}', destination='{DEVICES[to]}', on='here'{more})"
    recv = f"recv(key='{key}', source='{HERE}', shape={shape}, dtype='float32', on='{to}', after='send/{{}}'{more})"
    return f"{send}; recv__{place} = {recv.format(place.replace('__', '/'))}"


LATE = "late_{} = input(on='{}', after='{}')"
TRANSFERS = {
    "one pair per destination for any number of readers": (
        READ.replace("input(3, on='here'", "input(3, on='here', layer='fc1'"),
        f"""x = input(3, on='here', layer='fc1'); home = identity(x, on='here')
        {sent("x", "there", layer="fc1")}; a = neg(recv__x_0__{SLUGS["there"]}, on='there')
        b = exp(recv__x_0__{SLUGS["there"]}, on='there'); {sent("x", "far", layer="fc1")}
        c = concat(recv__x_0__{SLUGS["far"]}, recv__x_0__{SLUGS["far"]}, axis=0, on='far')""",
    ),
    "outputs of one node are sent separately": (
        "x = input(4, on='here'); low, high = split(x, axis=0, sizes=(1, 3), on='here')"
        "; y = concat(high, low, axis=0, on='there')",
        f"""x = input(4, on='here'); low, high = split(x, axis=0, sizes=(1, 3), on='here')
        {sent("high", "there", "low", 1)}; {sent("low", "there", shape=(1,))}
        y = concat(recv__low_1__{SLUGS["there"]}, recv__low_0__{SLUGS["there"]}, axis=0, on='there')""",
    ),
    "a graph on one device does not change": (
        "x = input(4, on='here'); y = neg(x, on='here', after='x')",
        "x = input(4, on='here'); y = neg(x, on='here', after='x')",
    ),
    "a control edge becomes one empty transfer per destination": (
        f"""first = input(4, on='here'); {LATE.format(0, "there", "first")}; {LATE.format(1, "there", "first")}
        {LATE.format(2, "far", "first")}; {LATE.format(3, "here", "first")}""",
        f"""first = input(4, on='here')
        first__done = fill(value=0.0, shape=(0,), dtype='float32', on='here', after='first')
        {sent("first__done", "there", shape=(0,))}
        {LATE.format(0, "there", f"recv/first/done_0/{SLUGS['there']}")}
        {LATE.format(1, "there", f"recv/first/done_0/{SLUGS['there']}")}
        {sent("first__done", "far", shape=(0,))}; {LATE.format(2, "far", f"recv/first/done_0/{SLUGS['far']}")}
        {LATE.format(3, "here", "first")}""",
    ),
    "a constant is repeated on the device that reads it": (
        "half = fill(value=0.5, shape=(3,), dtype='float32', on='here'); a = neg(half, on='there')"
        "; b = exp(half, on='there')",
        f"""half = fill(value=0.5, shape=(3,), dtype='float32', on='here')
        half__on__{SLUGS["there"]} = fill(value=0.5, shape=(3,), dtype='float32', on='there')
        a = neg(half__on__{SLUGS["there"]}, on='there'); b = exp(half__on__{SLUGS["there"]}, on='there')""",
    ),
}


@pytest.mark.parametrize("name", TRANSFERS)
def test_transfers_are_inserted_as_the_table_says(name: str) -> None:
    before, after = TRANSFERS[name]
    cut = insert_transfers(Text.parse(before).graph)
    verify(cut)
    assert list(cut) == list(Text.parse(after).graph)


@settings(max_examples=60)
@given(sample=samples())
def test_any_graph_is_cut_into_a_legal_partition_that_gives_the_same_bits(sample: Sample, registry: Registry) -> None:
    cluster = local_cluster(sample.devices)
    cut = insert_transfers(place(sample.graph, cluster, lambda node: None))
    verify(cut)
    for node in cut:
        before = [tensor.node for tensor in node.inputs] + list(node.control_inputs)
        if node.op == "recv":
            assert [cut.nodes[name].op for name in before] == ["send"]
        else:
            assert {cut.nodes[name].device for name in before} <= {node.device}
    keys = [(node.inputs[0], node.attributes["destination"]) for node in of_op(cut, "send")]
    assert len(keys) == len(set(keys)) == len(of_op(cut, "recv"))
    verify_partition(split(cut, list(schedule(cut, cluster)[0])))
    expected = evaluate(sample.graph, sample.fetches, sample.feeds)
    came = run_once(sample.graph, registry, sample.fetches, sample.feeds, cluster=cluster)
    for a, b in zip(came, expected, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


def seen(tensor: str, device: str, more: str = "") -> tuple[str, str]:
    """Return the name of a decompressed tensor on a device, and the statement that decompresses the tensor."""
    name = f"decompress__{tensor}__{SLUGS[device]}"
    return name, f"{name} = cast(compress__{tensor}, dtype='float32', on='{device}'{more})"


(AT_HOME, X_HERE), (AWAY, X_THERE), (AFAR, X_FAR) = (seen("x_0", device) for device in DEVICES)
(_, OF_FC1), (W, W_THERE), (SET, SET_THERE) = (
    seen("x_0", "there", ", layer='fc1'"),
    seen("w_0", "there"),
    seen("set_0", "there"),
)
TRUNCATED = "compress__x_0 = truncate_to_bfloat16(x, on='here')"
STATE = "w = weights(3, on='here'); update = neg(w, on='here'); set = assign(w, update, on='here')"
COMPRESSED = {
    "a tensor is truncated once and cast back once per device": Case(
        READ,
        f"""x = input(3, on='here'); {TRUNCATED}; {X_HERE}; home = identity({AT_HOME}, on='here')
        {X_THERE}; a = neg({AWAY}, on='there'); b = exp({AWAY}, on='there')
        {X_FAR}; c = concat({AFAR}, {AFAR}, axis=0, on='far')""",
        fetch="x home c",
    ),
    "a tensor is cast back only on devices that read it": Case(
        "x = input(3, on='here'); a = neg(x, on='there')",
        f"x = input(3, on='here'); {TRUNCATED}; {X_THERE}; a = neg({AWAY}, on='there')",
    ),
    "new nodes have the layer of the truncated tensor": Case(
        "x = input(3, on='here', layer='fc1'); a = neg(x, on='there')",
        f"""x = input(3, on='here', layer='fc1'); {TRUNCATED[:-1]}, layer='fc1'); {OF_FC1}
        a = neg({AWAY}, on='there')""",
    ),
    "a variable is not truncated for readers on its device": Case(
        f"{STATE}; home = identity(set, on='here'); away = add(w, set, on='there')",
        f"""{STATE}; home = identity(set, on='here')
        compress__w_0 = truncate_to_bfloat16(w, on='here'); {W_THERE}
        compress__set_0 = truncate_to_bfloat16(set, on='here'); {SET_THERE}; away = add({W}, {SET}, on='there')""",
        fetch="w set away",
    ),
    "a tensor of one number": Case(
        "x = input(1, on='here'); a = neg(x, on='there')",
        f"x = input(1, on='here'); {TRUNCATED}; {X_THERE}; a = neg({AWAY}, on='there')",
    ),
    "a constant, which is not sent": Case(
        "c = fill(value=0.1, shape=(3,), dtype='float32', on='here'); a = neg(c, on='there')", fetch="c a"
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


@pytest.mark.parametrize("name", COMPRESSED)
def test_transfers_are_compressed_as_the_table_says(name: str) -> None:
    check(COMPRESSED[name], compress_transfers, same_bits=False)


def test_fetch_reads_the_decompressed_tensor() -> None:
    graph, moved = compress_transfers(Text.parse(READ).graph, Roots.of([X, HOME]))
    at_home = next(node for node in of_op(graph, "cast") if node.device == HERE)
    assert moved == {X: at_home[0]}


@settings(max_examples=60)
@given(training_samples(dtype="float32", max_devices=3))
def test_every_compressible_tensor_is_sent_in_16_bits_and_a_second_run_changes_nothing(sample: Sample) -> None:
    placed = place(sample.graph, local_cluster(sample.devices), lambda node: None)
    graph, moved = compress_transfers(placed, Roots.of(sample.fetches))
    verify(graph)
    arriving = [node.outputs[0] for node in of_op(insert_transfers(graph), "recv")]
    assert [spec for spec in arriving if spec.dtype == "float32" and spec.rank > 0 and spec.size > 0] == []
    again, nothing = compress_transfers(graph, Roots.of(moved.get(tensor, tensor) for tensor in sample.fetches))
    assert (again.nodes, nothing) == (graph.nodes, {})


def truncated(x: Array) -> Array:
    """Return float32 numbers with the lower 16 bits set to zero."""
    return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)


def test_owner_and_other_readers_read_the_same_bits(registry: Registry) -> None:
    text = Text.parse(READ)
    readers = text.names("x home a c")
    asked = Client("train", {str(t): t for t in readers}, feeds={"x": (X,)})
    x = np.array([1.001, -3e-39, 1 / 3], np.float32)
    with session(text.graph, registry, asked, cluster=local_cluster(3, compression="high16")) as opened:
        came = opened.run("train", feeds={"x": x})
        assert opened.sent_bytes() == [2 * 3 * 2, 0, 0]
    # A fetch of the placeholder returns the truncated value that all other readers of the placeholder read.
    kept = truncated(x)
    for tensor, expected in zip(readers, (kept, kept, -kept, np.resize(kept, 6)), strict=True):
        np.testing.assert_array_equal(came[str(tensor)], expected, strict=True)


def test_variables_are_saved_and_restored_bit_for_bit(registry: Registry) -> None:
    text = Text.parse(
        """x = input(3, on='here'); w = weights(3, on='there'); put = assign(w, x, on='there')
        got = concat(w, axis=0, on='here')"""
    )
    x = np.array([1.001, 2.002, 3.003], np.float32)
    clients = [
        Client("restore", targets=("put",), feeds={"x": (X,)}, exact=True),
        Client("save", {"w": Tensor("got")}, exact=True),
        Client("train", {"w": Tensor("got")}),
    ]
    with session(text.graph, registry, *clients, cluster=local_cluster(2, compression="high16")) as opened:
        opened.run("restore", feeds={"x": x})
        np.testing.assert_array_equal(opened.run("save")["w"], x, strict=True)
        np.testing.assert_array_equal(opened.run("train")["w"], truncated(x), strict=True)


def test_compression_pass_runs_only_if_the_cluster_requests_it(registry: Registry) -> None:
    client = Client("train", {"home": HOME}, targets=("a",), feeds={"x": (X,)})
    for compression, expected in (("none", 0), ("high16", 1)):
        observed: dict[str, Graph] = {}
        cluster = local_cluster(3, compression=compression)
        compiled = compile_signature(Text.parse(READ).graph, client.signature, cluster, registry, observed.__setitem__)
        assert ("compression" in observed) == bool(expected)
        assert len(of_op(observed["writes"], "truncate_to_bfloat16")) == expected
        verify_partition({device: part.graph for device, part in compiled.parts.items()})
