"""How a network is split into body, dense layers and head, and which networks are refused."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from runner import nn
from runner.engine.graph import ops
from runner.engine.graph.network import NetworkBuilder, NetworkFunction, Outputs
from runner.engine.graph.op import OPS
from runner.engine.graph.tensor import Node
from runner.errors import ConfigError
from runner.optimizers.sgd import Sgd
from runner.strategies.hybrid import Hybrid
from runner.strategies.sharded.blueprint import Blueprint
from runner.strategies.sharded.dense_sharding import BY_UNIT
from runner.strategies.sharded.network_parts import Parts
from tests.strategies.networks import CLASSES, NETWORKS, Batch, hybrid, task_of


def parts_of(network: NetworkFunction, *, training: bool = True) -> Parts:
    return Parts.of(Blueprint.of(task_of(network, Sgd(), batch_size=4), 4, training=training))


def layers(nodes: Sequence[Node]) -> list[str]:
    return list(dict.fromkeys(node.layer.name for node in nodes if node.layer))


@pytest.mark.parametrize("training", [True, False])
def test_a_network_is_cut_at_its_first_dense_layer_and_its_loss(training: bool) -> None:
    parts = parts_of(hybrid, training=training)
    assert layers(parts.body) == ["conv1", "relu1", "pool1", "flat"]
    dropout = ["drop"] if training else []
    assert layers(parts.dense) == ["fc1", "relu2", *dropout, "fc2", "relu3", "fc3"]
    assert layers(parts.head) == ["loss"]
    graph = parts.blueprint.graph
    assert (graph.spec(parts.boundary).shape, graph.spec(parts.logits).shape) == ((4, 8), (4, CLASSES))


def test_nothing_but_the_form_of_images_is_below_a_dense_network() -> None:
    assert layers(parts_of(NETWORKS["dense"]).body) == ["flat"]


def refused(network: NetworkFunction, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Hybrid(workers=2).build(task_of(network, Sgd(), batch_size=4))


def test_a_network_without_dense_layers_is_refused() -> None:
    def convolved(net: NetworkBuilder, batch: Batch) -> Outputs:
        h = nn.conv(net, batch["x"], CLASSES, 3, name="conv1")
        return nn.classify(net, nn.global_avg_pool(net, h, name="pool"), batch["y"])

    refused(convolved, r"parallelism=hybrid: the network has no dense layers to shard; use parallelism=sync_data")


def test_two_dense_layers_beside_each_other_are_refused() -> None:
    def forked(net: NetworkBuilder, batch: Batch) -> Outputs:
        h = nn.flatten(net, batch["x"], name="flat")
        other = nn.dense(net, nn.relu(net, h, name="relu"), CLASSES, name="fc2")
        return nn.classify(net, ops.add(net.graph, nn.dense(net, h, CLASSES, name="fc1"), other), batch["y"])

    refused(
        forked,
        "expected one tensor that dense layers read first, found relu/relu:0, flat/reshape:0; use parallelism=sync",
    )


def test_a_connection_around_dense_layers_is_refused() -> None:
    def around(net: NetworkBuilder, batch: Batch) -> Outputs:
        h = nn.flatten(net, nn.conv(net, batch["x"], CLASSES, 6, name="conv1"), name="flat")
        gate = nn.relu(net, h, name="gate")
        return nn.classify(net, ops.mul(net.graph, nn.dense(net, h, CLASSES, name="fc1"), gate), batch["y"])

    refused(around, r"layer 'gate' \(activation\) follows a dense layer, and its op 'relu' cannot be sharded")


def test_a_connection_from_further_below_is_refused() -> None:
    def around(net: NetworkBuilder, batch: Batch) -> Outputs:
        h = nn.conv(net, batch["x"], CLASSES, 3, name="conv1")
        pooled = nn.global_avg_pool(net, h, name="pool")
        h = nn.dense(net, nn.flatten(net, h, name="flat"), CLASSES, name="fc1")
        return nn.classify(net, ops.add(net.graph, h, pooled), batch["y"])

    refused(around, "layer 'pool' reads conv1/add:0; expected a network where only the first dense layer reads what is")


def test_a_loss_of_more_than_logits_is_refused() -> None:
    def penalised(net: NetworkBuilder, batch: Batch) -> Outputs:
        h = nn.flatten(net, batch["x"], name="flat")
        outputs = nn.classify(net, nn.dense(net, h, CLASSES, name="fc1"), batch["y"])
        with net.layer("penalty", "loss"):
            return replace(outputs, losses=ops.add(net.graph, outputs.losses, ops.reduce_sum(net.graph, h, axes=(1,))))

    refused(
        penalised, "layer 'penalty' reads flat/reshape:0; expected a network where the loss reads logits and labels"
    )


def test_an_op_that_mixes_units_is_refused_with_its_layer() -> None:
    def mixed(net: NetworkBuilder, batch: Batch) -> Outputs:
        h = nn.dense(net, nn.flatten(net, batch["x"], name="flat"), 6, name="fc1")
        with net.layer("squash", "activation"):
            h = ops.softmax(net.graph, h)
        return nn.classify(net, nn.dense(net, h, CLASSES, name="fc2"), batch["y"])

    refused(mixed, r"layer 'squash' \(activation\) follows a dense layer, and its op 'softmax' cannot")


def test_a_convolution_after_a_dense_layer_is_refused() -> None:
    def back(net: NetworkBuilder, batch: Batch) -> Outputs:
        h = nn.dense(net, nn.flatten(net, batch["x"], name="flat"), 16, name="fc1")
        with net.layer("images", "shape"):
            h = ops.reshape(net.graph, h, (-1, 1, 4, 4))
        h = nn.conv(net, h, CLASSES, 4, name="conv1")
        return nn.classify(net, nn.flatten(net, h, name="flat2"), batch["y"])

    refused(back, r"layer 'images' \(shape\) follows a dense layer, and its op 'reshape' cannot")


def test_by_unit_names_known_ops() -> None:
    assert set(OPS) >= BY_UNIT
