"""The order of each device: possible, repeatable, free of deadlock, and sending as early as it can."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given

from runner import nn
from runner.engine.compile import cost
from runner.engine.compile.compile import compile_signature
from runner.engine.compile.cost import DISPATCH_S
from runner.engine.compile.passes.rewriting import needed_by
from runner.engine.compile.passes.transfers import insert_transfers
from runner.engine.compile.placement import place
from runner.engine.compile.schedule import PATIENCE, split, start_times
from runner.engine.graph import ops
from runner.engine.graph.device import Cluster, Device, local_cluster, worker_device
from runner.engine.graph.graph import Graph
from runner.engine.graph.network import NetworkBuilder, Outputs
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
from runner.strategies.base import Task
from runner.strategies.sync_data import SyncData
from tests.engine.graph.random_graphs import Sample, samples
from tests.strategies.networks import NETWORKS, Batch, task_of

HERE, THERE = worker_device(0), worker_device(1)


def cut_of(sample: Sample) -> Graph:
    return insert_transfers(place(sample.graph, local_cluster(sample.devices), lambda node: None))


def order_of(sample: Sample) -> list[str]:
    return list(start_times(cut_of(sample), local_cluster(sample.devices)))


@given(samples())
def test_every_node_is_ordered_once_and_after_what_it_needs(sample: Sample) -> None:
    cut, order = cut_of(sample), order_of(sample)
    assert sorted(order) == sorted(cut.nodes)
    position = {name: i for i, name in enumerate(order)}
    for node in cut:
        for before in (*(t.node for t in node.inputs), *node.control_inputs):
            assert position[before] < position[node.name]


@given(samples())
def test_the_order_is_a_function_of_the_graph(sample: Sample) -> None:
    assert order_of(sample) == order_of(sample)


@given(samples())
def test_the_order_is_that_of_simulated_starts(sample: Sample) -> None:
    starts = start_times(cut_of(sample), local_cluster(sample.devices))
    assert list(starts.values()) == sorted(starts.values())


def test_a_node_starts_when_its_inputs_are_there_and_its_device_is_free() -> None:
    """Memory that takes no time, 1 operation a second, wires of 10 s and 2 bytes a second."""
    graph = Graph()
    with graph.device(HERE):
        x = ops.placeholder(graph, (3,), "float32", name="x")
        y = ops.neg(graph, x, name="y")
        ops.neg(graph, y, name="z")
    with graph.device(THERE):
        w = ops.placeholder(graph, (3,), "float32", name="w")
        ops.add(graph, w, y, name="late")
    devices = tuple(Device(name, flops_per_s=1.0, bytes_per_s=1e30) for name in (HERE, THERE))
    starts = start_times(insert_transfers(graph), Cluster(devices, latency_s=10.0, bytes_per_s=2.0))
    send, recv = (next(name for name in starts if name.startswith(op)) for op in ("send/", "recv/"))
    wire_s, d = 10.0 + 12 / 2.0, DISPATCH_S
    assert starts == pytest.approx(
        {"x": 0, "w": 0, "y": 0, send: 3 + d, "z": 3 + 2 * d, recv: 3 + wire_s + 2 * d, "late": 3 + wire_s + 3 * d},
        rel=1e-12,
    )


@given(samples())
def test_parts_hold_every_node_on_its_device_in_the_scheduled_order(sample: Sample) -> None:
    cut, order = cut_of(sample), order_of(sample)
    parts = split(cut, order)
    for device, part in parts.items():
        assert list(part.nodes) == [name for name in order if cut.nodes[name].device == device]
        for node in part:
            assert set(node.control_inputs) == set(cut.nodes[node.name].control_inputs) & set(part.nodes)


@given(samples())
def test_devices_that_wait_at_each_receive_never_deadlock(sample: Sample) -> None:
    cut, order = cut_of(sample), order_of(sample)
    run_waiting({device: list(part.nodes) for device, part in split(cut, order).items()}, cut)


def run_waiting(queues: Mapping[str, list[str]], cut: Graph) -> None:
    """Let every device run its queue, stopping at a receive until its send has run; fail when all wait."""
    sent: set[str] = set()
    at = dict.fromkeys(queues, 0)
    while any(at[device] < len(queue) for device, queue in queues.items()):
        before = dict(at)
        for device, queue in queues.items():
            while at[device] < len(queue):
                node = cut.nodes[queue[at[device]]]
                if node.op == "recv" and node.attributes["key"] not in sent:
                    break
                if node.op == "send":
                    sent.add(node.attributes["key"])
                at[device] += 1
        assert at != before, f"all devices wait, after {at} of {queues}"


@given(samples())
def test_a_receive_stands_directly_before_its_first_reader(sample: Sample) -> None:
    cut = cut_of(sample)
    for part in split(cut, order_of(sample)).values():
        for name in (node.name for node in part if node.op == "recv"):
            following = list(part.nodes.values())[list(part.nodes).index(name) + 1 :]
            first = next(node for node in following if node.op != "recv" or name in needed_by(node))
            assert name in needed_by(first)


@given(samples())
def test_a_send_follows_its_value_with_nothing_but_sends_between(sample: Sample) -> None:
    cut = cut_of(sample)
    for part in split(cut, order_of(sample)).values():
        order = list(part.nodes.values())
        for position, node in enumerate(order):
            if node.op == "send":
                value = list(part.nodes).index(node.inputs[0].node)
                assert all(between.op == "send" for between in order[value + 1 : position])


def sent_over(wire_s: float, products: int, *, back: bool, large: bool = False) -> tuple[Graph, Cluster]:
    """A tensor goes over, is added to another and, perhaps, goes back, beside a chain of products of a second each.

    large: what comes of the products takes as long on the wire as the tensor; otherwise it takes no time.
    Memory that takes no time, and a wire on which the tensor takes so many seconds.
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


def products_before(name: str, graph: Graph, cluster: Cluster) -> int:
    """How many products are begun before a node."""
    starts = start_times(graph, cluster)
    return sum(other.startswith("product") and start < starts[name] for other, start in starts.items())


def test_a_sum_that_is_sent_on_is_put_off_for_a_part_of_its_slack() -> None:
    # There after 1.5 s. Sent on by 18.5 s it comes back no later than the last product is known: a slack of 17 s.
    assert products_before("total", *sent_over(1.5, 20, back=True)) == math.ceil(1.5 + PATIENCE * 17)


def test_a_sum_on_the_critical_path_is_not_put_off() -> None:
    assert products_before("total", *sent_over(9.5, 12, back=True)) == 10


def test_a_sum_is_not_put_off_whose_link_is_needed_afterwards() -> None:
    # Back from 9.5 to 19 s; only then the link is free for what is known after 12 s.
    assert products_before("total", *sent_over(9.5, 12, back=True, large=True)) == 10
    assert products_before("total", *sent_over(3.5, 12, back=True, large=True)) == math.ceil(3.5 + PATIENCE * 5)


def test_a_sum_that_stays_waits_until_there_is_nothing_else_to_do() -> None:
    assert products_before("total", *sent_over(1.5, 12, back=False)) == 12


@pytest.mark.parametrize("wire_s", [1.5, 2.0, 4.0])
def test_a_tensor_that_comes_later_than_estimated_keeps_nobody_waiting(wire_s: float) -> None:
    graph, estimated = sent_over(1.5, 20, back=True)
    order = list(start_times(graph, estimated))
    assert idle_s(graph, order, replace(estimated, bytes_per_s=4000 / wire_s))[THERE] == pytest.approx(0.0)


def idle_s(graph: Graph, order: Sequence[str], cluster: Cluster) -> dict[str, float]:
    """Seconds for which each device waits at receives, where it runs its nodes in an order, whatever comes when."""
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


def test_a_link_carries_one_tensor_after_the_other() -> None:
    """Two of them, of 4 s each, to one device; a third to another does not wait for them."""
    graph = Graph()
    with graph.device(HERE):
        sent = [ops.placeholder(graph, (2,), "float32", name=f"x{k}") for k in range(3)]
    for k, device in enumerate((THERE, THERE, worker_device(2))):
        with graph.device(device):
            ops.neg(graph, sent[k], name=f"y{k}")
    starts = start_times(insert_transfers(graph), replace(local_cluster(3), latency_s=1.0, bytes_per_s=2.0))
    assert [starts[f"y{k}"] for k in range(3)] == pytest.approx([5.0, 9.0, 5.0], abs=1e-3)


def training_parts(task: Task, workers: int, registry: Registry) -> list[Graph]:
    """The scheduled graphs of a training step of ``sync_data``, by worker."""
    program = SyncData(workers=workers, bucket_bytes=0).build(task)
    compiled = compile_signature(program.graph, program.clients["train"].signature, local_cluster(workers), registry)
    return [compiled.parts[worker_device(k)].graph for k in range(workers)]


def gradient_sends(part: Graph, worker: int, layer: str) -> list[int]:
    """When a worker sends slices of its own gradients of a layer."""
    own = f"worker_{worker}/slice"
    return [
        position
        for position, node in enumerate(part)
        if node.op == "send" and node.name.startswith(f"send/reduce/{layer}/") and own in node.name
    ]


def backward(part: Graph, layer: str) -> list[int]:
    """When the backward pass of a layer computes."""
    return [
        position
        for position, node in enumerate(part)
        if "/gradients/" in node.name and node.layer is not None and node.layer.name == layer
    ]


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize(
    ("network", "layers"), [("dense", ["fc3", "fc2", "fc1"]), ("convolutional", ["fc", "conv2", "conv1"])]
)
def test_a_layer_s_gradient_leaves_before_the_layers_below_compute_theirs(
    network: str, layers: list[str], workers: int, registry: Registry
) -> None:
    task = task_of(NETWORKS[network], Momentum(), batch_size=4 * workers)
    for worker, part in enumerate(training_parts(task, workers, registry)):
        for layer, below in pairwise(layers):
            sends = gradient_sends(part, worker, layer)
            # Weights and biases, to every other worker that owns a part of them.
            assert len(sends) >= workers
            assert max(sends) < min(backward(part, below))


def wide(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Layers that compute for longer than a transfer takes."""
    h = nn.flatten(net, batch["x"], name="flat")
    for k in range(1, 6):
        h = nn.relu(net, nn.dense(net, h, 256, name=f"fc{k}"), name=f"relu{k}")
    return nn.classify(net, h, batch["y"])


def test_sums_of_upper_layers_are_made_and_sent_while_lower_layers_still_compute(registry: Registry) -> None:
    task = task_of(wide, Momentum(), batch_size=2000)
    for worker, part in enumerate(training_parts(task, 2, registry)):
        position = {name: i for i, name in enumerate(part.nodes)}
        (summed,) = (
            position[node.name]
            for node in part
            if node.op == "send" and node.name.startswith(f"send/reduce/fc5/weights/worker_{worker}/sum")
        )
        assert summed < max(backward(part, "fc1"))
