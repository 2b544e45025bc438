"""Transfers of a step and the time hidden by compute: numbers derived by hand from the cost model."""

import pytest

from runner.engine.compile.compile import Compiled, compile_signature
from runner.engine.compile.program import Client
from runner.engine.compile.transfer_times import Transfer, transfers
from runner.engine.graph import ops
from runner.engine.graph.device import Cluster, Device, local_cluster, worker_device
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import LayerStamp
from runner.engine.graph.tensor import Tensor
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
from runner.strategies.sync_data import SyncData
from tests.strategies.networks import NETWORKS, workload_of

HERE, THERE = worker_device(0), worker_device(1)
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
    assert transfer == Transfer(HERE, THERE, "fc1", X_BYTES, pytest.approx(WIRE_S), pytest.approx(product_s))


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
    assert transfer == Transfer(HERE, THERE, None, 0, LATENCY_S, 0.0)


@pytest.mark.parametrize("combine", ["sharded_reduce", "ring_all_reduce"])
def test_transfers_contain_every_byte_of_a_training_step(combine: str, registry: Registry) -> None:
    cluster = local_cluster(3)
    program = SyncData(workers=3, combine=combine).build(workload_of(NETWORKS["dense"], Momentum(), batch_size=9))
    step = compile_signature(program.graph, program.clients["train"].signature, cluster, registry)
    found = transfers(step, cluster)
    for device, part in step.parts.items():
        assert sum(each.nbytes for each in found if each.source == device) == part.plan(device, registry, {}).sent_bytes
    assert all(0 <= each.hidden_s <= each.seconds == cluster.transfer_s(each.nbytes) for each in found)
