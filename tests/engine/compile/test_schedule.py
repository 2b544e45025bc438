"""The order of nodes on each device: valid, free of deadlock, early sends, late receives; times of transfers."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given

from runner import nn
from runner.engine.compile import cost
from runner.engine.compile.compile import Compiled, compile_signature
from runner.engine.compile.cost import DISPATCH_S
from runner.engine.compile.passes.transfers import insert_transfers
from runner.engine.compile.placement import place
from runner.engine.compile.program import Client
from runner.engine.compile.schedule import PATIENCE, schedule, split
from runner.engine.compile.transfer_times import TimedTransfer, transfers
from runner.engine.graph import Graph, LayerStamp, NetworkBuilder, Node, Outputs, Tensor, ops
from runner.engine.graph.device import Cluster, Device, local_cluster, worker_device
from runner.kernels.registry import Registry
from runner.optimizers import Momentum
from runner.strategies import SyncData, Workload
from runner.tasks.classification import Classification
from tests.engine.compile.verified_parts import expect_all_end
from tests.engine.graph.random_graphs import Sample, samples
from tests.strategies.networks import NETWORKS, Batch, workload_of

HERE, THERE = worker_device(0), worker_device(1)


def cut_of(sample: Sample) -> Graph:
    return insert_transfers(place(sample.graph, local_cluster(sample.devices), lambda node: None))


@given(samples())
def test_any_graph_has_a_valid_and_repeatable_order(sample: Sample) -> None:
    """Expect each node once, after all nodes that it needs and by simulated start time; a second run must agree."""
    cut = cut_of(sample)
    starts, _ = schedule(cut, local_cluster(sample.devices))
    assert list(starts.items()) == list(schedule(cut_of(sample), local_cluster(sample.devices))[0].items())
    assert list(starts.values()) == sorted(starts.values())
    order = list(starts)
    assert sorted(order) == sorted(cut.nodes)
    position = {name: i for i, name in enumerate(order)}
    for node in cut:
        assert all(position[before] < position[node.name] for before in node.needed)
    parts = split(cut, order)
    for device, part in parts.items():
        assert list(part.nodes) == [name for name in order if cut.nodes[name].device == device]
        for node in part:
            assert set(node.control_inputs) == set(cut.nodes[node.name].control_inputs) & set(part.nodes)
        expect_transfers_next_to_their_tensors(list(part))
    expect_all_end(parts.values())


def expect_transfers_next_to_their_tensors(nodes: Sequence[Node]) -> None:
    """Expect each receive directly before its first reader, and no work except sends between a tensor and its send."""
    position = {node.name: i for i, node in enumerate(nodes)}
    for i, node in enumerate(nodes):
        if node.op == "recv":
            first = next(each for each in nodes[i + 1 :] if each.op != "recv" or node.name in each.needed)
            assert node.name in first.needed
        elif node.op == "send":
            between = {each.op for each in nodes[position[node.inputs[0].node] + 1 : i]}
            assert between <= {"send", *cost.RESIDENT}


def test_node_starts_when_its_inputs_have_arrived_and_its_device_is_free() -> None:
    """Memory access takes no time, an operation takes 1 s, and a link has a latency of 10 s and carries 2 bytes/s."""
    graph = Graph()
    with graph.device(HERE):
        x = ops.placeholder(graph, (3,), "float32", name="x")
        y = ops.neg(graph, x, name="y")
        ops.neg(graph, y, name="z")
    with graph.device(THERE):
        w = ops.placeholder(graph, (3,), "float32", name="w")
        ops.add(graph, w, y, name="late")
    devices = tuple(Device(name, flops_per_s=1.0, bytes_per_s=1e30) for name in (HERE, THERE))
    starts, _ = schedule(insert_transfers(graph), Cluster(devices, latency_s=10.0, bytes_per_s=2.0))
    send, recv = (next(name for name in starts if name.startswith(op)) for op in ("send/", "recv/"))
    wire_s, d = 10.0 + 12 / 2.0, DISPATCH_S
    assert starts == pytest.approx(
        {"x": 0, "w": 0, "y": 0, send: 3 + d, "z": 3 + 2 * d, recv: 3 + wire_s + 2 * d, "late": 3 + wire_s + 3 * d},
        rel=1e-12,
    )


def sent_over(wire_s: float, products: int, *, back: bool, large: bool = False) -> tuple[Graph, Cluster]:
    """Return a graph in which a device receives x, adds another tensor to x, and computes products of 1 s each.

    wire_s: the seconds that x occupies the link. back: whether the sum is sent back. large: whether the result of the
    products occupies the link as long as x, rather than for no time. Memory access takes no time.
    """
    graph = Graph()
    with graph.device(HERE):
        x = ops.placeholder(graph, (1000,), "float32", name="x")
    with graph.device(THERE):
        own = ops.placeholder(graph, (1000,), "float32", name="own")
        a = ops.placeholder(graph, (100, 100), "float32", name="a")
        product = a
        for k in range(products):
            product = ops.matmul(graph, product, a, name=f"product{k}")
        total = ops.add(graph, x, own, name="total")
        last = ops.reduce_sum(graph, product, (0, 1), name="last")
        last = ops.add(graph, own, last) if large else last
    with graph.device(HERE):
        if back:
            ops.neg(graph, total, name="summed")
        ops.neg(graph, last, name="done")
    devices = tuple(Device(name, flops_per_s=2e6, bytes_per_s=1e30) for name in (HERE, THERE))
    return insert_transfers(graph), Cluster(devices, latency_s=0.0, bytes_per_s=4000 / wire_s)


@pytest.mark.parametrize(
    ("wire_s", "products", "back", "large", "begun"),
    [
        # x arrives after 1.5 s. If the sum is sent by 18.5 s, it arrives by the end of the last product: 17 s of slack.
        (1.5, 20, True, False, math.ceil(1.5 + PATIENCE[0] * 17)),
        # The sum is on the critical path: the device waits for x instead of starting the tenth product at 9 s.
        (9.5, 12, True, False, 9),
        # The sum occupies the link from 9.5 s to 19 s, so the result of the products, ready after 12 s, has to wait.
        (9.5, 12, True, True, 9),
        (3.5, 12, True, True, math.ceil(3.5 + PATIENCE[0] * 5)),
        # The sum is not sent, so it waits until there is no other work.
        (1.5, 12, False, False, 12),
    ],
)
def test_sum_of_a_received_tensor_is_delayed_by_a_part_of_its_slack(
    wire_s: float, products: int, back: bool, large: bool, begun: int
) -> None:
    graph, cluster = sent_over(wire_s, products, back=back, large=large)
    starts, _ = schedule(graph, cluster)
    before = [name for name, start in starts.items() if name.startswith("product") and start < starts["total"]]
    assert len(before) == begun


@pytest.mark.parametrize(("after", "begins"), [(20, 7.5), (0, 24.0)])
def test_a_device_waits_for_a_chain_of_messages_if_that_makes_the_step_shorter(after: int, begins: float) -> None:
    """after: seconds of products that the other device computes after the chain."""
    graph, hops = Graph(), 6
    with graph.device(THERE):
        a = ops.placeholder(graph, (200, 200), "float32", name="a")
        for k in range(3):
            ops.matmul(graph, a, a, name=f"long{k}")
    with graph.device(HERE):
        token = ops.placeholder(graph, (100, 100), "float32", name="token")
    for k in range(hops + after):
        with graph.device(THERE if k % 2 and k < hops else HERE):
            token = ops.matmul(graph, token, token, name=f"short{k}")
    # A short product takes 1 s, a long one 8 s, and a message 0.5 s.
    devices = tuple(Device(name, flops_per_s=2e6, bytes_per_s=1e30) for name in (HERE, THERE))
    starts, _ = schedule(insert_transfers(graph), Cluster(devices, latency_s=0.5, bytes_per_s=1e30))
    assert starts[f"short{hops - 1}"] == pytest.approx(begins, abs=2.1)


@pytest.mark.parametrize("wire_s", [1.5, 2.0, 4.0])
def test_no_device_waits_for_a_tensor_that_arrives_later_than_estimated(wire_s: float) -> None:
    graph, estimated = sent_over(1.5, 20, back=True)
    order = list(schedule(graph, estimated)[0])
    assert idle_s(graph, order, replace(estimated, bytes_per_s=4000 / wire_s))[THERE] == pytest.approx(0.0)


def idle_s(graph: Graph, order: Sequence[str], cluster: Cluster) -> dict[str, float]:
    """Return the seconds for which each device waits at receives if it runs its nodes in the given order."""
    ends: dict[str, float] = {}
    now, idle = defaultdict[str, float](float), defaultdict[str, float](float)
    for node in map(graph.nodes.__getitem__, order):
        if node.op == "recv":
            arrival = ends[node.control_inputs[0]] + cluster.transfer_s(node.outputs[0].nbytes)
            idle[node.device] += max(0.0, arrival - now[node.device])
            now[node.device] = max(now[node.device], arrival)
        now[node.device] += cost.node_seconds(graph, node, cluster.device(node.device))
        ends[node.name] = now[node.device]
    return idle


def test_link_transfers_one_tensor_after_the_other() -> None:
    """Two tensors of 4 s each are sent to one device; a third tensor is sent to another device and does not wait."""
    graph = Graph()
    with graph.device(HERE):
        sent = [ops.placeholder(graph, (2,), "float32", name=f"x{k}") for k in range(3)]
    for k, device in enumerate((THERE, THERE, worker_device(2))):
        with graph.device(device):
            ops.neg(graph, sent[k], name=f"y{k}")
    starts, _ = schedule(insert_transfers(graph), replace(local_cluster(3), latency_s=1.0, bytes_per_s=2.0))
    assert [starts[f"y{k}"] for k in range(3)] == pytest.approx([5.0, 9.0, 5.0], abs=1e-3)


def training_parts(workload: Workload, workers: int, registry: Registry) -> list[Graph]:
    """Return the scheduled graph of a ``sync_data`` training step for each worker."""
    program = SyncData(workers=workers, bucket_bytes=0).build(workload)
    compiled = compile_signature(program.graph, program.clients["train"].signature, local_cluster(workers), registry)
    return [compiled.parts[worker_device(k)].graph for k in range(workers)]


def gradient_sends(part: Graph, layer: str) -> list[int]:
    """Return the positions at which a worker sends the gradients that it computed for a layer, or slices of them."""
    return [
        position
        for position, node in enumerate(part)
        if node.op == "send" and node.layer is not None and node.layer.name == layer and "/sum_" not in node.name
    ]


def backward(part: Graph, layer: str) -> list[int]:
    """Return the positions of the nodes in the backward pass of a layer."""
    return [
        position
        for position, node in enumerate(part)
        if "/gradients/" in node.name and node.layer is not None and node.layer.name == layer
    ]


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize(
    ("network", "layers"), [("dense", ["fc3", "fc2", "fc1"]), ("convolutional", ["fc", "conv2", "conv1"])]
)
def test_gradient_of_a_layer_is_sent_before_the_gradients_of_lower_layers_are_computed(
    network: str, layers: list[str], workers: int, registry: Registry
) -> None:
    workload = workload_of(NETWORKS[network], Momentum(), batch_size=4 * workers)
    for part in training_parts(workload, workers, registry):
        for layer, below in pairwise(layers):
            sends = gradient_sends(part, layer)
            # Gradients of weights and biases are sent to each other worker that owns a part of these variables.
            assert len(sends) >= workers
            assert max(sends) < min(backward(part, below))


def wide(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build layers that compute for longer than a transfer takes."""
    h = nn.flatten(net, batch["x"], name="flat")
    for k in range(1, 6):
        h = nn.relu(net, nn.dense(net, h, 256, name=f"fc{k}"), name=f"relu{k}")
    return Classification().score(net, h, batch)


def test_sums_of_upper_layers_are_sent_while_lower_layers_still_compute(registry: Registry) -> None:
    workload = workload_of(wide, Momentum(), batch_size=3000)
    for worker, part in enumerate(training_parts(workload, 3, registry)):
        sums = [
            position
            for position, node in enumerate(part)
            if node.op == "send" and node.name.startswith(f"send/reduce/fc5/weights/worker_{worker}/sum")
        ]
        assert len(sums) == 2
        assert max(sums) < max(backward(part, "fc1"))


LATENCY_S, BYTES_PER_S, FLOPS_PER_S = 1e-3, 1e6, 1e9

X_BYTES = 4 * 250
WIRE_S = LATENCY_S + X_BYTES / BYTES_PER_S
"""Seconds that a transfer of x takes: 2 milliseconds."""


def two_devices(compression: str = "none") -> Cluster:
    """Return two devices that compute 1e9 operations per second and access memory in no time."""
    devices = tuple(Device(name, FLOPS_PER_S, 1e30) for name in (HERE, THERE))
    return Cluster(devices, LATENCY_S, BYTES_PER_S, compression)


def compiled(inner: int, registry: Registry, *, followed: bool = False, compression: str = "none") -> Compiled:
    """Compile a graph that sends x and negates it on the receiver, after a product of 2 x 100 x 100 x inner operations.

    followed: whether another product follows, after which x is read again.
    """
    graph = Graph()
    with graph.device(HERE), graph.layer(LayerStamp("fc1", "dense")):
        x = ops.placeholder(graph, (250,), "float32", name="x")
    with graph.device(THERE):
        a, b = (
            ops.placeholder(graph, shape, "float32", name=name)
            for name, shape in (("a", (100, inner)), ("b", (inner, 100)))
        )
        first = ops.matmul(graph, a, b, name="first")
        with graph.control_dependencies([first.node]):
            late = ops.neg(graph, x, name="late")
        with graph.control_dependencies([late.node]):
            second = ops.matmul(graph, b, a, name="second")
        with graph.control_dependencies([second.node]):
            last = ops.abs(graph, x, name="last")
    fetches = {"first": first, "late": late} | ({"last": last} if followed else {})
    client = Client("train", fetches, feeds={str(t): (t,) for t in (x, a, b)})
    return compile_signature(graph, client.signature, two_devices(compression), registry)


@pytest.mark.parametrize("inner", [50, 75])
def test_compute_of_the_receiver_until_it_needs_a_tensor_hides_the_transfer(inner: int, registry: Registry) -> None:
    (transfer,) = transfers(compiled(inner, registry), two_devices())
    # The send of x and the product start together; each of them takes one dispatch.
    product_s = 2 * 100 * 100 * inner / FLOPS_PER_S
    assert transfer == TimedTransfer(HERE, THERE, "fc1", X_BYTES, pytest.approx(WIRE_S), pytest.approx(product_s))


def test_hidden_time_is_at_most_the_time_of_the_transfer(registry: Registry) -> None:
    (transfer,) = transfers(compiled(500, registry), two_devices())
    assert transfer.hidden_s == transfer.seconds == pytest.approx(WIRE_S)


def test_compute_after_the_first_read_hides_nothing(registry: Registry) -> None:
    (short,), (long,) = (
        transfers(compiled(50, registry, followed=followed), two_devices()) for followed in (False, True)
    )
    assert long == short


def test_compression_halves_the_bytes_and_keeps_the_layer(registry: Registry) -> None:
    (transfer,) = transfers(compiled(50, registry, compression="high16"), two_devices("high16"))
    assert (transfer.nbytes, transfer.layer) == (X_BYTES // 2, "fc1")
    assert transfer.seconds == pytest.approx(LATENCY_S + X_BYTES / 2 / BYTES_PER_S)


def test_node_that_waits_for_another_device_needs_the_transfer(registry: Registry) -> None:
    """A control edge is a transfer of 0 bytes that belongs to no layer; the node that waits needs this transfer."""
    graph = Graph()
    with graph.device(HERE):
        x = ops.placeholder(graph, (), "float32", name="x")
        ops.neg(graph, x, name="first")
    with graph.device(THERE), graph.control_dependencies(["first"]):
        y = ops.fill(graph, 1.0, (2,), "float32", name="y")
    client = Client("train", {"y": y}, feeds={"x": (Tensor("x"),)})
    (transfer,) = transfers(compile_signature(graph, client.signature, two_devices(), registry), two_devices())
    assert transfer == TimedTransfer(HERE, THERE, None, 0, LATENCY_S, 0.0)


@pytest.mark.parametrize("combine", ["sharded_reduce", "ring_all_reduce"])
def test_transfers_contain_every_byte_of_a_training_step(combine: str, registry: Registry) -> None:
    cluster = local_cluster(3)
    program = SyncData(workers=3, combine=combine).build(workload_of(NETWORKS["dense"], Momentum(), batch_size=9))
    step = compile_signature(program.graph, program.clients["train"].signature, cluster, registry)
    found = transfers(step, cluster)
    for device, part in step.parts.items():
        assert sum(each.nbytes for each in found if each.source == device) == part.plan(device, registry, {}).sent_bytes
    assert all(0 <= each.hidden_s <= each.seconds == cluster.transfer_s(each.nbytes) for each in found)
