"""The layer of each node, with or without a stamp; the nodes of a layer stay together."""

import pytest

from runner.engine.compile.passes.layer_groups import colocate_layers, devices_of_layers, home_layers
from runner.engine.compile.placement import PlacementError, place
from runner.engine.graph import ops
from runner.engine.graph.device import local_cluster, worker_device
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import LayerStamp

FC, LOSS = LayerStamp("fc", "dense"), LayerStamp("loss", "loss")


def trained() -> Graph:
    """A layer, a loss, and a gradient that is clipped and applied; labels and rate are fed."""
    graph = Graph()
    x, labels = (ops.placeholder(graph, (3,), "float32", name=name) for name in ("x", "labels"))
    rate = ops.placeholder(graph, (), "float32", name="rate")
    ops.placeholder(graph, (), "float32", name="unread")
    with graph.layer(FC):
        w = ops.variable(graph, (3,), "float32", name="w")
        y = ops.mul(graph, x, w, name="y")
    with graph.layer(LOSS):
        losses = ops.sub(graph, y, labels, name="losses")
    total = ops.neg(graph, losses, name="total")
    seed = ops.fill(graph, 1.0, (3,), "float32")
    backward = ops.mul(graph, seed, total, name="backward")
    with graph.layer(FC):
        gradient = ops.mul(graph, backward, x, name="gradient")
    clipped = ops.scale(graph, gradient, 0.5)
    ops.assign(graph, w, ops.sub(graph, w, ops.mul(graph, clipped, rate), name="new"), name="assign")
    return graph


def test_node_without_a_stamp_belongs_to_the_layer_of_an_input_or_a_reader() -> None:
    homes = home_layers(trained())
    fc = {"w", "y", "x", "gradient", "mul", "mul_1", "fill_1", "new", "assign", "rate", "unread"}
    assert {name for name, home in homes.items() if home == "fc"} == fc
    assert {homes[name] for name in ("losses", "total", "labels", "backward", "fill")} == {"loss"}
    assert homes.keys() == trained().nodes.keys()


def test_graph_without_layers_has_no_groups() -> None:
    graph = Graph()
    ops.placeholder(graph, (), "float32", name="unread")
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
    graph = trained()
    with graph.device(worker_device(1)), graph.layer(FC):
        ops.neg(graph, graph.nodes["y"][0], name="elsewhere")
    with graph.device(worker_device(0)), graph.layer(FC):
        ops.neg(graph, graph.nodes["y"][0], name="here")
    with pytest.raises(PlacementError, match="must share a device with"):
        place(colocate_layers(graph, {}), local_cluster(2), lambda node: None)
