"""Placement of a program and of its layers: feasible, never slower than one device, and optimal in known cases."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner import nn
from runner.engine.compile.compile import compile_signature
from runner.engine.compile.cost import node_seconds
from runner.engine.compile.passes.layer_groups import colocate_layers, devices_of_layers, home_layers
from runner.engine.compile.placement import PlacementError, colocation_groups, place
from runner.engine.compile.program import Client, Program
from runner.engine.compile.program_placement import GIVEN, measured_seconds, place_program, stages
from runner.engine.graph import Graph, NetworkBuilder, Outputs, TensorSpec
from runner.engine.graph.device import Cluster, Device, DeviceName, local_cluster, worker_device
from runner.engine.run.kernel_table import load_kernels
from runner.kernels.registry import Registry
from runner.optimizers import Sgd
from runner.strategies import ModelParallel, Single, Workload
from runner.tasks.classification import Classification
from tests.engine.compile.passes.graph_text import Text
from tests.engine.graph.random_graphs import Sample, samples
from tests.strategies.networks import NETWORKS, Batch, workload_of


def program_of(sample: Sample) -> Program:
    """Return a program whose training step is a random graph."""
    names = {f"fetch_{k}": tensor for k, tensor in enumerate(sample.fetches)}
    client = Client("train", names, feeds={tensor.node: (tensor,) for tensor in sample.feeds})
    specs: dict[str, TensorSpec] = {}
    return Program(sample.graph, {"train": client}, specs, workers=sample.devices)


def all_on_one(program: Program, device: str) -> Graph:
    """Return the graph of a program with all unconstrained nodes on one device."""
    placed = Graph()
    for node in program.graph:
        placed.insert(replace(node, device=node.device or device))
    return placed


WIRES = st.sampled_from([(0.0, 1e30), (1e-6, 1e9), (5e-4, 2e9), (1.0, 1.0)])


@given(samples(), WIRES)
@settings(max_examples=40)
def test_random_graphs_are_placed_feasibly_and_never_slower_than_on_one_device(
    sample: Sample, wire: tuple[float, float]
) -> None:
    registry = load_kernels()
    program, cluster = program_of(sample), local_cluster(sample.devices, latency_s=wire[0], bytes_per_s=wire[1])
    placed = place_program(program, cluster, registry)
    assert list(placed.program.graph.nodes) == list(sample.graph.nodes)
    for node in placed.program.graph:
        name = DeviceName.parse(node.device)
        assert name.is_full
        assert name.matches(DeviceName.parse(sample.graph.nodes[node.name].device))
    signature = program.clients["train"].signature
    found = compile_signature(placed.program.graph, signature, cluster, registry).step_s
    assert found == pytest.approx(placed.step_s)
    for device in cluster.devices:
        alone = compile_signature(all_on_one(program, device.name), signature, cluster, registry).step_s
        assert found <= alone * (1 + 1e-9)


def branches(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build two branches of equal work and add their outputs; a separate device for each branch is optimal."""
    h = nn.flatten(net, batch["x"], name="flat")
    left, right = (
        nn.dense(net, nn.dense(net, h, 400, name=f"{name}1"), 400, name=f"{name}2") for name in ("left", "right")
    )
    return Classification().score(net, nn.dense(net, nn.add(net, left, right, name="sum"), 3, name="fc"), batch)


def workload(network: str | None = None) -> Workload:
    return workload_of(NETWORKS[network] if network else branches, Sgd(), batch_size=64)


def layers_placed(program: Program, cluster: Cluster) -> dict[str, str]:
    return devices_of_layers(place_program(program, cluster, load_kernels()).program.graph)


def test_equal_branches_are_on_two_devices_and_take_little_more_than_half_the_time() -> None:
    near = local_cluster(2, latency_s=1e-7, bytes_per_s=1e13)
    placed = place_program(ModelParallel().build(workload()), near, load_kernels())
    layers = devices_of_layers(placed.program.graph)
    assert layers["left1"] == layers["left2"] != layers["right1"] == layers["right2"]
    assert placed.tried["greedy"] < 1.02 * placed.step_s
    assert placed.step_s < 0.65 * placed.tried["one_device_0"]


def test_all_nodes_are_on_one_device_if_links_are_slow() -> None:
    far = local_cluster(2, latency_s=1.0)
    placed = place_program(ModelParallel().build(workload()), far, load_kernels())
    assert set(devices_of_layers(placed.program.graph).values()) == {worker_device(0)}
    assert placed.found_by == "one_device_0"


def test_all_layers_of_a_chain_are_on_the_faster_device() -> None:
    devices = (Device(worker_device(0)), Device(worker_device(1), flops_per_s=1e12, bytes_per_s=1e11))
    layers = layers_placed(ModelParallel().build(workload("dense")), Cluster(devices))
    assert set(layers.values()) == {worker_device(1)}


def test_only_one_of_several_devices_with_equal_rates_is_tried() -> None:
    def tried(cluster: Cluster) -> set[str]:
        ways = place_program(ModelParallel(workers=2).build(workload()), cluster, load_kernels()).tried
        return {way for way in ways if way.startswith("one_device")}

    assert tried(local_cluster(2)) == {"one_device_0"}
    first, second = local_cluster(2).devices
    slower = replace(second, flops_per_s=second.flops_per_s / 2)
    assert tried(Cluster((first, slower))) == {"one_device_0", "one_device_1"}


def test_pipeline_of_equal_layers_is_divided_in_the_middle() -> None:
    def tower(net: NetworkBuilder, batch: Batch) -> Outputs:
        h = nn.flatten(net, batch["x"], name="flat")
        for k in range(6):
            h = nn.dense(net, h, 36, name=f"fc{k}")
        return Classification().score(net, h, batch)

    near = local_cluster(2, latency_s=1e-7, bytes_per_s=1e13)
    in_parts = ModelParallel(concurrent_steps=4).build(workload_of(tower, Sgd(), batch_size=4096))
    placed = place_program(in_parts, near, load_kernels())
    layers = devices_of_layers(placed.program.graph)
    assert placed.found_by == "stages_2"
    assert [layers[f"fc{k}"] for k in range(6)] == [worker_device(0)] * 3 + [worker_device(1)] * 3


def test_no_placement_is_tried_if_all_devices_are_given() -> None:
    strategy = ModelParallel(constraints={"*": 1})
    placed = place_program(strategy.build(workload()), local_cluster(2), load_kernels())
    assert (placed.found_by, list(placed.tried)) == (GIVEN, [GIVEN])
    assert set(devices_of_layers(placed.program.graph).values()) == {worker_device(1)}


def step_of(registry: Registry) -> Graph:
    """Return the graph of a training step of strategy ``single``. A run can record the durations of its nodes."""
    program = Single().build(workload())
    compiled = compile_signature(program.graph, program.clients["train"].signature, local_cluster(1), registry)
    return compiled.parts[worker_device(0)].graph


def test_measured_seconds_replace_estimates_and_scale_the_estimates_of_unmeasured_nodes(registry: Registry) -> None:
    program, cluster = ModelParallel().build(workload()), local_cluster(2)
    graph, device, step = program.graph, cluster.devices[0], step_of(registry)
    measured = {node.name: 3 * node_seconds(step, node, device) for node in step}
    seconds = measured_seconds(measured | {"train/left1/matmul": 0.5}, program, cluster, registry)
    assert seconds(graph, graph.nodes["train/left1/matmul"], device) == 0.5
    seconds = measured_seconds(measured, program, cluster, registry)
    other = graph.nodes["eval/left1/matmul"]
    assert seconds(graph, other, device) == pytest.approx(3 * node_seconds(graph, other, device))
    assert seconds(graph, graph.nodes["left1/weights"], device) == 0.0


def test_measured_seconds_decide_the_placement(registry: Registry) -> None:
    """By measurement, the forward pass of one branch takes nearly all the time, so a second device does not help."""
    program, cluster = ModelParallel().build(workload()), local_cluster(2, latency_s=1e-5, bytes_per_s=1e12)
    measured = {name: 10.0 if name.startswith("train/left") else 1e-7 for name in step_of(registry).nodes}
    assert sum(measured.values()) == pytest.approx(2 * 10.0, rel=1e-3)
    seconds = measured_seconds(measured, program, cluster, registry)
    layers = devices_of_layers(place_program(program, cluster, registry, seconds).program.graph)
    assert len(set(layers.values())) == 1
    estimated = layers_placed(program, cluster)
    assert estimated["left1"] != estimated["right1"]


def test_record_of_another_network_is_refused(registry: Registry) -> None:
    program, cluster = ModelParallel().build(workload("convolutional")), local_cluster(2)
    with pytest.raises(ValueError, match=r"found durations of \d+ of \d+ nodes of a step"):
        measured_seconds(dict.fromkeys(step_of(registry).nodes, 1e-3), program, cluster, registry)


def chain(widths: list[int], more: str = "") -> Graph:
    """Return a chain of products y1, y2, ... from each width to the next, each with a separate variable."""
    products = (
        f"w{k} = weights({before}, {after}); y{k} = matmul(y{k - 1}, w{k}, beside='w{k}')"
        for k, (before, after) in enumerate(pairwise(widths), start=1)
    )
    return Text.parse(f"y0 = input(64, {widths[0]}); {'; '.join(products)}{more}", "float64").graph


def stage_of(graph: Graph, cluster: Cluster, count: int) -> list[int]:
    """Return the number of the worker on which each product is placed if the graph has ``count`` stages."""
    groups = colocation_groups(graph, cluster, lambda node: None)
    choice = stages(graph, cluster, groups.of, groups.feasible, node_seconds)[count - 2]
    products = [node.name for node in graph if node.op == "matmul"]
    return [int(choice[groups.of[name]].split("task:")[1].split("/")[0]) for name in products]


@pytest.mark.parametrize(
    ("widths", "count", "bytes_per_s", "expected"),
    [
        ([300] * 7, 3, 1e30, [0, 0, 1, 1, 2, 2]),
        ([300] * 7, 2, 1e30, [0, 0, 0, 1, 1, 1]),
        # Each of the two large products gets a separate device.
        ([100, 100, 100, 3000, 100], 2, 1e30, [0, 0, 0, 1]),
        # A cut after the first product would balance compute, but the output of the third product is far smaller.
        ([300, 300, 300, 2, 300], 2, 1e8, [0, 0, 0, 1]),
    ],
)
def test_chain_is_divided_evenly_or_at_a_small_tensor(
    widths: list[int], count: int, bytes_per_s: float, expected: list[int]
) -> None:
    cluster = local_cluster(count, latency_s=0.0, bytes_per_s=bytes_per_s)
    assert stage_of(chain(widths), cluster, count) == expected


def test_constrained_group_satisfies_its_constraint() -> None:
    graph = chain([300] * 5, "; last = neg(y4, on='here')")
    cluster = local_cluster(2, latency_s=0.0, bytes_per_s=1e30)
    groups = colocation_groups(graph, cluster, lambda node: None)
    (choice,) = stages(graph, cluster, groups.of, groups.feasible, node_seconds)
    assert choice[groups.of["last"]] == worker_device(0)
    assert choice[groups.of["y4"]] == worker_device(1)


@pytest.mark.parametrize("count", [2, 3])
@given(widths=st.lists(st.integers(1, 400), min_size=5, max_size=8), bandwidth=st.sampled_from([1e7, 1e9, 1e12]))
def test_no_other_cuts_make_the_slowest_stage_faster(count: int, widths: list[int], bandwidth: float) -> None:
    graph, cluster = chain(widths), local_cluster(3, latency_s=0.0, bytes_per_s=bandwidth)
    compute = [
        sum(node_seconds(graph, graph.nodes[name], cluster.devices[0]) for name in (f"w{k}", f"y{k}"))
        for k in range(1, len(widths))
    ]
    # The input belongs to no group that computes, so no cut separates the input from its reader.
    wire = [0.0, *(cluster.transfer_s(graph.spec(graph.nodes[f"y{k}"][0]).nbytes) for k in range(1, len(widths) - 1))]

    def slowest(edges: list[int]) -> float:
        return max((wire[begin] if begin else 0.0) + sum(compute[begin:end]) for begin, end in pairwise(edges))

    cuts = [[0, *inner, len(compute)] for inner in combinations(range(1, len(compute)), count - 1)]
    found = stage_of(graph, cluster, count)
    edges = [0, *(k for k in range(1, len(found)) if found[k] != found[k - 1]), len(found)]
    assert slowest(edges) == pytest.approx(min(map(slowest, cuts)), rel=1e-9)


TRAINED = """x = input(3); labels = input(3); rate = input(); unread = input(); w = weights(3, layer='fc')
    y = mul(x, w, layer='fc'); losses = sub(y, labels, layer='loss'); total = neg(losses)
    seed = fill(value=1.0, shape=(3,), dtype='float32'); backward = mul(seed, total)
    gradient = mul(backward, x, layer='fc'); half = fill(value=0.5, shape=(), dtype='float32')
    clipped = mul(gradient, half); step = mul(clipped, rate); new = sub(w, step); set = assign(w, new)"""
"""A layer, a loss, and a gradient that is clipped and applied; labels and rate are fed."""


def trained(more: str = "") -> Graph:
    return Text.parse(TRAINED + more).graph


def test_node_without_a_layer_belongs_to_the_layer_of_an_input_or_a_reader() -> None:
    homes = home_layers(trained())
    fc = {"w", "y", "x", "gradient", "clipped", "step", "half", "new", "set", "rate", "unread"}
    assert {name for name, home in homes.items() if home == "fc"} == fc
    assert {homes[name] for name in ("losses", "total", "labels", "backward", "seed")} == {"loss"}
    assert homes.keys() == trained().nodes.keys()


def test_graph_without_layers_has_no_groups() -> None:
    graph = Text.parse("unread = input()").graph
    assert home_layers(graph) == {}
    assert colocate_layers(graph, {}).nodes == graph.nodes


def test_layer_is_placed_on_one_device() -> None:
    graph = colocate_layers(trained(), {"loss": worker_device(1), "fc": worker_device(0)})
    placed = place(graph, local_cluster(2), lambda node: None)
    homes = home_layers(placed)
    for name, home in homes.items():
        assert placed.nodes[name].device == worker_device({"fc": 0, "loss": 1}[home]), name
    assert devices_of_layers(placed) == {"fc": worker_device(0), "loss": worker_device(1)}
    assert all(node.colocate_with == () for node in placed)


def test_two_devices_in_one_layer_are_refused() -> None:
    graph = trained("; there = neg(y, layer='fc', on='there'); here = neg(y, layer='fc', on='here')")
    with pytest.raises(PlacementError, match="must share a device with"):
        place(colocate_layers(graph, {}), local_cluster(2), lambda node: None)
