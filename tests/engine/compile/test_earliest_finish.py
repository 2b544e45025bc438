"""The greedy heuristic on graphs whose best placement is known."""

from runner.engine.compile.cost import node_seconds
from runner.engine.compile.earliest_finish import earliest_finish
from runner.engine.compile.placement import colocation_groups
from runner.engine.graph import ops
from runner.engine.graph.device import Cluster, Device, local_cluster, worker_device
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import LayerStamp, Tensor

HERE, THERE = worker_device(0), worker_device(1)
NEAR = local_cluster(2, latency_s=1e-9, bytes_per_s=1e15)
SIDE = 200
"""Products of matrices of this side take 80 microseconds, a transfer between them far less."""


def chosen(graph: Graph, cluster: Cluster = NEAR) -> dict[str, str]:
    """The device of every node."""
    groups = colocation_groups(graph, cluster, lambda node: None)
    devices = earliest_finish(graph, cluster, groups.of, groups.feasible, node_seconds)
    return {name: devices[group] for name, group in groups.of.items()}


def layer(graph: Graph, x: Tensor, name: str) -> Tensor:
    """A product with a variable, and a bias that is reshaped; all of it one group."""
    with graph.layer(LayerStamp(name, "dense")):
        w = ops.variable(graph, (SIDE, SIDE), "float64", name=f"{name}/w")
        b = ops.variable(graph, (SIDE,), "float64", name=f"{name}/b")
        # Ready at once; it must not decide the device.
        row = graph.add("reshape", [b], {"shape": (1, SIDE)}, name=f"{name}/row", colocate_with=[w.node])[0]
        attributes = {"transpose_a": False, "transpose_b": False}
        product = graph.add("matmul", [x, w], attributes, name=f"{name}/product", colocate_with=[w.node])[0]
        return graph.add("add", [product, row], name=f"{name}/y", colocate_with=[w.node])[0]


def fed(graph: Graph, name: str = "x") -> Tensor:
    return ops.placeholder(graph, (SIDE, SIDE), "float64", name=name)


def test_branches_are_on_different_devices() -> None:
    graph = Graph()
    x = fed(graph)
    left, right = layer(graph, layer(graph, x, "a"), "b"), layer(graph, layer(graph, x, "c"), "d")
    ops.add(graph, left, right, name="joint")
    found = chosen(graph)
    assert found["a/y"] == found["b/y"] != found["c/y"] == found["d/y"]


def test_chain_is_on_one_device() -> None:
    graph = Graph()
    y = fed(graph)
    for name in "abcd":
        y = layer(graph, y, name)
    assert len(set(chosen(graph).values())) == 1


def test_two_streams_through_a_chain_of_layers_are_a_pipeline() -> None:
    """Streams share variables, so each layer has one device; while it serves the second stream, the next one begins.

    The graph has one stream after the other, so nodes must be visited by their longest remaining path.
    """
    graph = Graph()
    weights = [ops.variable(graph, (SIDE, SIDE), "float64", name=name) for name in "ab"]
    for stream in range(2):
        x = fed(graph, f"x_{stream}")
        for w in weights:
            attributes = {"transpose_a": False, "transpose_b": False}
            x = graph.add("matmul", [x, w], attributes, name=f"{w.node}_{stream}", colocate_with=[w.node])[0]
    found = chosen(graph)
    assert found["a_0"] == found["a_1"] != found["b_0"] == found["b_1"]


def test_tensor_is_sent_to_a_device_once_for_all_its_readers() -> None:
    """Sending x takes 0.8 ms: for one transfer the rest stays here, for one per reader it would not."""
    graph = Graph()
    with graph.device(HERE):
        x = ops.neg(graph, ops.placeholder(graph, (1000, 1000), "float64", name="large"), name="x")
        y = fed(graph, "y")
    with graph.device(THERE):
        for k in range(20):
            ops.neg(graph, x, name=f"reader_{k}")
    ops.matmul(graph, y, y, name="rest")
    devices = (Device(HERE, flops_per_s=16e9), Device(THERE, flops_per_s=1e30, bytes_per_s=1e30))
    found = chosen(graph, Cluster(devices, latency_s=1e-2, bytes_per_s=1e30))
    assert found["rest"] == HERE


def test_tensor_is_received_once_for_several_readers() -> None:
    """The readers leave a busy device over a slow link; only the first one waits for the transfer."""
    graph = Graph()
    with graph.device(HERE):
        x = busy = ops.neg(graph, fed(graph), name="x")
        for k in range(6):
            busy = ops.matmul(graph, busy, busy, name=f"busy_{k}")
    for k in range(3):
        ops.matmul(graph, x, x, name=f"reader_{k}")
    slow = local_cluster(2, latency_s=2e-4, bytes_per_s=1e15)
    found = chosen(graph, slow)
    assert {found[f"reader_{k}"] for k in range(3)} == {THERE}


def test_source_is_placed_with_its_first_reader() -> None:
    graph = Graph()
    with graph.device(THERE):
        pinned = ops.neg(graph, fed(graph, "pinned_input"), name="pinned")
    labels = fed(graph, "labels")
    with graph.device(THERE):
        ops.add(graph, pinned, labels, name="loss")
    found = chosen(graph)
    assert found["labels"] == found["pinned_input"] == THERE


def test_layer_is_placed_by_its_input_and_not_by_its_variables() -> None:
    """The reshaped variable is ready first, while the other device is idle; the link is too slow for the rest."""
    graph = Graph()
    with graph.device(HERE):
        x = ops.neg(graph, fed(graph), name="x")
    layer(graph, x, "a")
    slow = local_cluster(2, latency_s=1.0, bytes_per_s=1e6)
    assert set(chosen(graph, slow).values()) == {HERE}
