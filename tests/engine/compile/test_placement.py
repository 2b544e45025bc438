"""Placement of nodes: the devices allowed for a node, the device chosen, and the greedy heuristic."""

import re
from collections.abc import Collection

import pytest
from hypothesis import given

from runner.engine.compile.cost import node_seconds
from runner.engine.compile.earliest_finish import earliest_finish
from runner.engine.compile.placement import PlacementError, colocation_groups, place
from runner.engine.graph import Cluster, Device, DeviceName, Node, local_cluster
from tests.engine.compile.passes.graph_text import HERE, THERE, Text
from tests.engine.graph.random_graphs import Sample, samples
from tests.engine.running import CPU_0, CPU_1, GPU_0, cluster_of

GPU_1 = "/job:worker/task:1/device:gpu:0"
FOUR = cluster_of(CPU_0, GPU_0, CPU_1, GPU_1)
SHORT = {CPU_0: "cpu0", GPU_0: "gpu0", CPU_1: "cpu1", GPU_1: "gpu1"}


def any_type(node: Node) -> Collection[str] | None:
    return None


def matmul_on_gpu_only(node: Node) -> Collection[str] | None:
    return {"gpu"} if node.op == "matmul" else {"cpu", "gpu"}


def source(on: str = "", beside: str = "") -> str:
    return f"fill(value=1.0, shape=(2, 2), dtype='float64', on='{on}', beside='{beside}')"


def devices(text: str) -> dict[str, str]:
    """Return the device of every node in a cluster in which only GPUs have a kernel for matmul."""
    placed = place(Text.parse(text, "float64").graph, FOUR, matmul_on_gpu_only)
    return {node.name: SHORT[node.device] for node in placed}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(
            (f"a = {source(constraint)}", {"a": device})
            for constraint, device in (
                ("", "cpu0"),
                (GPU_1, "gpu1"),
                ("/task:1", "cpu1"),
                ("/device:gpu", "gpu0"),
                ("/device:gpu:0", "gpu0"),
                ("/task:1/device:gpu", "gpu1"),
                ("/job:worker", "cpu0"),
            )
        ),
        # A node and all nodes of its colocation group are placed on a device with kernels for their ops.
        (f"a = {source(CPU_0)}; p = matmul(a, a)", {"a": "cpu0", "p": "gpu0"}),
        (f"a = {source('/task:1')}; p = matmul(a, a, beside='a')", {"a": "gpu1", "p": "gpu1"}),
        # A chain of colocations is one group; only devices that are allowed for all its nodes are feasible.
        (
            f"""a = {source()}; b = {source(beside="a")}; alone = {source()}; x = {source(GPU_1)}
            y = {source(beside="x")}; joint = {source(beside="y b")}""",
            {"a": "gpu1", "b": "gpu1", "alone": "cpu0", "x": "gpu1", "y": "gpu1", "joint": "gpu1"},
        ),
        (f"a = {source('/task:1')}; b = {source('/device:gpu', 'a')}", {"a": "gpu1", "b": "gpu1"}),
    ],
)
def test_node_is_placed_on_the_first_device_that_satisfies_its_constraints(text: str, expected: dict[str, str]) -> None:
    assert devices(text) == expected


@pytest.mark.parametrize("constraint", ["/task:2", "/job:ps", "/device:tpu", "/task:0/device:cpu:1"])
def test_constraint_that_no_device_satisfies_is_refused_with_the_devices(constraint: str) -> None:
    expected = (
        f"node 'a' (op 'fill') cannot be placed: constraint '{constraint}', device types with a kernel: any, "
        f"devices: {CPU_0}, {GPU_0}, {CPU_1}, {GPU_1}"
    )
    with pytest.raises(PlacementError, match=re.escape(expected)):
        place(Text.parse(f"a = {source(constraint)}").graph, FOUR, any_type)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"a = {source()}; p = matmul(a, a, on='/task:1/device:cpu:0')",
            r"node 'p' \(op 'matmul'\) cannot .*'/task:1/device:cpu:0', .* kernel: \['gpu'\]",
        ),
        (
            f"a = {source('/task:1')}; b = {source(beside='a')}; c = {source('/task:0', 'b')}",
            re.escape(
                f"node 'c' (op 'fill', constraint '/task:0') fits only ['{CPU_0}', '{GPU_0}'], but must share a device "
                f"with a, b, which fit only ['{CPU_1}', '{GPU_1}']; expected constraints that leave a device with"
            ),
        ),
        (
            f"a = {source('/device:cpu')}; p = matmul(a, a, beside='a')",
            re.escape(
                f"node 'p' (op 'matmul', constraint 'none') fits only ['{GPU_0}', '{GPU_1}'], but must share a device "
                f"with a, which fit only ['{CPU_0}', '{CPU_1}']"
            ),
        ),
    ],
    ids=["missing kernel", "empty intersection", "missing kernel on the device of the group"],
)
def test_node_for_which_no_device_is_feasible_is_refused(text: str, message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        devices(text)


@pytest.mark.parametrize(
    ("inputs_on", "latency_s", "bytes_per_s", "device"),
    [(CPU_0, 1e-6, 1e9, "gpu0"), (CPU_0, 1e-6, 1e6, "cpu0"), (GPU_0, 1e-6, 1e6, "gpu0"), (CPU_0, 1.0, 1e12, "cpu0")],
)
def test_node_is_placed_on_the_faster_device_unless_the_transfer_costs_more(
    inputs_on: str, latency_s: float, bytes_per_s: float, device: str
) -> None:
    """The product of a 200x200 matrix with itself takes 16 million operations; the matrix has 320 kB."""
    fast = Device(GPU_0, flops_per_s=1e11, gpu=0)
    cluster = Cluster((Device(CPU_0, flops_per_s=1e9), fast), latency_s, bytes_per_s)
    graph = Text.parse(f"a = input(200, 200, on='{inputs_on}'); p = matmul(a, a)", "float64").graph
    assert SHORT[place(graph, cluster, any_type).nodes["p"].device] == device


def test_busy_device_is_avoided() -> None:
    products = "; ".join(f"p{k} = matmul(a, a)" for k in range(4))
    equal = Cluster((Device(CPU_0), Device(CPU_1)), latency_s=1e-9, bytes_per_s=1e15)
    placed = place(Text.parse(f"a = input(200, 200); {products}", "float64").graph, equal, any_type)
    assert sorted(placed.nodes[f"p{k}"].device for k in range(4)) == [CPU_0, CPU_0, CPU_1, CPU_1]


@given(samples())
def test_placement_satisfies_constraints_and_is_reproducible(sample: Sample) -> None:
    placed, again = (place(sample.graph, local_cluster(sample.devices), any_type) for _ in range(2))
    assert list(placed.nodes.items()) == list(again.nodes.items())
    assert list(placed.nodes) == list(sample.graph.nodes)
    for node in placed:
        name = DeviceName.parse(node.device)
        assert name.is_full
        assert name.matches(DeviceName.parse(sample.graph.nodes[node.name].device))


NEAR = local_cluster(2, latency_s=1e-9, bytes_per_s=1e15)
FED = "input(200, 200)"
"""A matrix. The product of two such matrices takes 80 microseconds, a transfer between devices of NEAR far less."""


def chosen(text: str, cluster: Cluster = NEAR) -> dict[str, str]:
    """Return the device that the greedy heuristic chooses for every node."""
    graph = Text.parse(text, "float64").graph
    groups = colocation_groups(graph, cluster, any_type)
    found = earliest_finish(graph, cluster, groups.of, groups.feasible, node_seconds)
    return {name: found[group] for name, group in groups.of.items()}


def layer(x: str, name: str) -> str:
    """Return the statements of a colocated layer: a product with a variable, and a bias.

    The reshaped bias is ready first, but must not decide the device of the layer.
    """
    w = f"{name}_w"
    return f"""; {w} = weights(200, 200); {name}_b = weights(200)
    {name}_row = reshape({name}_b, shape=(1, 200), beside='{w}'); {name}_p = matmul({x}, {w}, beside='{w}')
    {name} = add({name}_p, {name}_row, beside='{w}')"""


def test_branches_are_on_different_devices_and_a_chain_on_one() -> None:
    found = chosen(f"x = {FED}{layer('x', 'a')}{layer('a', 'b')}{layer('x', 'c')}{layer('c', 'd')}; joint = add(b, d)")
    assert found["a"] == found["b"] != found["c"] == found["d"]
    chain = chosen(f"x = {FED}{layer('x', 'a')}{layer('a', 'b')}{layer('b', 'c')}{layer('c', 'd')}")
    assert len(set(chain.values())) == 1


def test_two_streams_through_a_chain_of_layers_are_a_pipeline() -> None:
    """Streams share variables, so each layer has one device; layer b computes a stream while layer a computes the next.

    In the graph, one stream precedes the other, so nodes must be visited in order of their longest remaining path.
    """
    streams = "; ".join(
        f"x{k} = {FED}; a{k} = matmul(x{k}, a, beside='a'); b{k} = matmul(a{k}, b, beside='b')" for k in range(2)
    )
    found = chosen(f"a = weights(200, 200); b = weights(200, 200); {streams}")
    assert found["a0"] == found["a1"] != found["b0"] == found["b1"]


def test_tensor_is_sent_to_a_device_once_for_all_its_readers() -> None:
    """A send of x occupies its device for 0.8 ms. With one send per reader, ``rest`` would be placed elsewhere."""
    readers = "; ".join(f"reader{k} = neg(x, on='there')" for k in range(20))
    devices = (Device(HERE, flops_per_s=16e9), Device(THERE, flops_per_s=1e30, bytes_per_s=1e30))
    found = chosen(
        f"""large = input(1000, 1000, on='here'); x = neg(large, on='here'); y = input(200, 200, on='here')
        {readers}; rest = matmul(y, y)""",
        Cluster(devices, latency_s=1e-2, bytes_per_s=1e30),
    )
    assert found["rest"] == HERE


def test_tensor_is_received_once_for_several_readers() -> None:
    """The device of x is busy, so the readers of x run on the other device; only the first one waits for the link."""
    busy = "; ".join(f"b{k + 1} = matmul(b{k}, b{k}, on='here')" for k in range(1, 6))
    found = chosen(
        f"""fed = input(200, 200, on='here'); x = neg(fed, on='here'); b1 = matmul(x, x, on='here'); {busy}
        r0 = matmul(x, x); r1 = matmul(x, x); r2 = matmul(x, x)""",
        local_cluster(2, latency_s=2e-4, bytes_per_s=1e15),
    )
    assert {found[f"r{k}"] for k in range(3)} == {THERE}


def test_node_without_inputs_is_placed_with_its_first_reader() -> None:
    found = chosen(
        f"p = input(200, 200, on='there'); y = neg(p, on='there'); labels = {FED}; z = add(y, labels, on='there')"
    )
    assert found["labels"] == found["p"] == THERE


def test_device_of_a_layer_depends_on_its_input_not_on_its_variables() -> None:
    """The reshaped variable is ready first and the other device is idle, but the link is too slow for the input."""
    slow = local_cluster(2, latency_s=1.0, bytes_per_s=1e6)
    text = f"fed = input(200, 200, on='here'); x = neg(fed, on='here'){layer('x', 'a')}"
    assert set(chosen(text, slow).values()) == {HERE}
