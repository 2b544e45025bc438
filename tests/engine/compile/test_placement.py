"""The devices on which a node may run, and the one that it is placed on."""

import re
from collections.abc import Collection

import pytest
from hypothesis import given

from runner.engine.compile.placement import PlacementError, place
from runner.engine.graph import ops
from runner.engine.graph.device import Cluster, Device, DeviceName, local_cluster
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Node, Tensor
from tests.engine.graph.random_graphs import Sample, samples
from tests.engine.running import CPU_0, CPU_1, GPU_0, cluster_of

GPU_1 = "/job:worker/task:1/device:gpu:0"
FOUR = cluster_of(CPU_0, GPU_0, CPU_1, GPU_1)


def any_type(node: Node) -> Collection[str] | None:
    return None


def matmul_on_gpu_only(node: Node) -> Collection[str] | None:
    return {"gpu"} if node.op == "matmul" else {"cpu", "gpu"}


def source(graph: Graph, name: str, device: str = "", colocate_with: tuple[str, ...] = ()) -> Tensor:
    with graph.device(device):
        attributes = {"value": 1.0, "shape": (2, 2), "dtype": "float64"}
        return graph.add("fill", (), attributes, name=name, colocate_with=colocate_with)[0]


def device_of(graph: Graph, name: str, cluster: Cluster = FOUR) -> str:
    return place(graph, cluster, any_type).nodes[name].device


@pytest.mark.parametrize(
    ("constraint", "device"),
    [
        ("", CPU_0),
        (GPU_1, GPU_1),
        ("/task:1", CPU_1),
        ("/device:gpu", GPU_0),
        ("/device:gpu:0", GPU_0),
        ("/task:1/device:gpu", GPU_1),
        ("/job:worker", CPU_0),
    ],
)
def test_node_is_placed_on_the_first_device_that_satisfies_its_constraint(constraint: str, device: str) -> None:
    graph = Graph()
    source(graph, "a", constraint)
    assert device_of(graph, "a") == device


@pytest.mark.parametrize("constraint", ["/task:2", "/job:ps", "/device:tpu", "/task:0/device:cpu:1"])
def test_constraint_that_no_device_satisfies_is_refused_with_the_devices(constraint: str) -> None:
    graph = Graph()
    source(graph, "a", constraint)
    expected = (
        f"node 'a' (op 'fill') cannot be placed: constraint '{constraint}', device types with a kernel: any, "
        f"devices: {CPU_0}, {GPU_0}, {CPU_1}, {GPU_1}"
    )
    with pytest.raises(PlacementError, match=re.escape(expected)):
        place(graph, FOUR, any_type)


def test_node_is_placed_on_a_device_with_a_kernel() -> None:
    graph = Graph()
    a = source(graph, "a", CPU_0)
    ops.matmul(graph, a, a, name="product")
    assert place(graph, FOUR, matmul_on_gpu_only).nodes["product"].device == GPU_0


def test_missing_kernel_is_reported_with_the_device_types_that_have_one() -> None:
    graph = Graph()
    a = source(graph, "a")
    with graph.device("/task:1/device:cpu:0"):
        ops.matmul(graph, a, a, name="product")
    expected = r"node 'product' \(op 'matmul'\) cannot .*'/task:1/device:cpu:0', .* kernel: \['gpu'\]"
    with pytest.raises(PlacementError, match=expected):
        place(graph, FOUR, matmul_on_gpu_only)


def test_chain_of_colocations_is_one_group() -> None:
    graph = Graph()
    source(graph, "a")
    source(graph, "b", colocate_with=("a",))
    source(graph, "alone")
    source(graph, "x", GPU_1)
    source(graph, "y", colocate_with=("x",))
    source(graph, "joint", colocate_with=("y", "b"))
    placed = place(graph, FOUR, any_type)
    assert {placed.nodes[name].device for name in ("a", "b", "x", "y", "joint")} == {GPU_1}
    assert placed.nodes["alone"].device != GPU_1


def test_feasible_sets_of_a_group_are_intersected() -> None:
    graph = Graph()
    source(graph, "a", "/task:1")
    source(graph, "b", "/device:gpu", colocate_with=("a",))
    assert device_of(graph, "a") == device_of(graph, "b") == GPU_1


def test_kernel_of_one_member_decides_for_its_group() -> None:
    graph = Graph()
    a = source(graph, "a", "/task:1")
    graph.add("matmul", [a, a], {"transpose_a": False, "transpose_b": False}, name="p", colocate_with=["a"])
    assert place(graph, FOUR, matmul_on_gpu_only).nodes["a"].device == GPU_1


def test_empty_intersection_is_reported_with_the_group() -> None:
    graph = Graph()
    source(graph, "a", "/task:1")
    source(graph, "b", colocate_with=("a",))
    source(graph, "c", "/task:0", colocate_with=("b",))
    feasible = f"feasible on ['{CPU_1}', '{GPU_1}']"
    expected = f"node 'c' requires '/task:0', but must share a device with a, b, {feasible}"
    with pytest.raises(PlacementError, match=re.escape(expected)):
        place(graph, FOUR, any_type)


def compute_heavy(where_inputs_are: str) -> Graph:
    """A product of two 200x200 matrices: 16 million operations, 320 kB for each input."""
    graph = Graph()
    with graph.device(where_inputs_are):
        a = ops.placeholder(graph, (200, 200), "float64", name="a")
    ops.matmul(graph, a, a, name="product")
    return graph


SLOW, FAST = Device(CPU_0, flops_per_s=1e9), Device(GPU_0, flops_per_s=1e11, gpu=0)


def test_node_without_a_constraint_is_placed_on_the_faster_device() -> None:
    cluster = Cluster((SLOW, FAST), latency_s=1e-6, bytes_per_s=1e9)
    assert device_of(compute_heavy(CPU_0), "product", cluster) == GPU_0


def test_node_stays_with_its_input_if_the_transfer_costs_more() -> None:
    cluster = Cluster((SLOW, FAST), latency_s=1e-6, bytes_per_s=1e6)
    assert device_of(compute_heavy(CPU_0), "product", cluster) == CPU_0
    assert device_of(compute_heavy(GPU_0), "product", cluster) == GPU_0


def test_latency_counts() -> None:
    cluster = Cluster((SLOW, FAST), latency_s=1.0, bytes_per_s=1e12)
    assert device_of(compute_heavy(CPU_0), "product", cluster) == CPU_0


def test_busy_device_is_avoided() -> None:
    graph = Graph()
    a = ops.placeholder(graph, (200, 200), "float64", name="a")
    for k in range(4):
        ops.matmul(graph, a, a, name=f"product_{k}")
    equal = Cluster((Device(CPU_0), Device(CPU_1)), latency_s=1e-9, bytes_per_s=1e15)
    placed = place(graph, equal, any_type)
    devices = [placed.nodes[f"product_{k}"].device for k in range(4)]
    assert sorted(devices) == [CPU_0, CPU_0, CPU_1, CPU_1]


@given(samples())
def test_every_node_has_a_full_name_that_its_constraint_allows_and_equally_in_a_second_run(sample: Sample) -> None:
    placed, again = (place(sample.graph, local_cluster(sample.devices), any_type) for _ in range(2))
    assert list(placed.nodes.items()) == list(again.nodes.items())
    assert list(placed.nodes) == list(sample.graph.nodes)
    for node in placed:
        name = DeviceName.parse(node.device)
        assert name.is_full
        assert name.matches(DeviceName.parse(sample.graph.nodes[node.name].device))
