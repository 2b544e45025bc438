"""Which layers are sharded together with the chosen dense layers, and which dense layers cannot be."""

import pytest

from runner import nn
from runner.engine.graph import ops
from runner.engine.graph.network import NetworkBuilder, NetworkFunction, Outputs
from runner.engine.graph.tensor import Tensor
from runner.errors import ConfigError
from runner.optimizers.sgd import Sgd
from runner.strategies.layer_names import shard_name, shard_of
from runner.strategies.sharded.blueprint import Blueprint
from runner.strategies.sharded.layer_cuts import Way, cut_layers, dense_layers
from tests.strategies.networks import CLASSES, Batch, dropped_out, hybrid, task_of


def drawn(network: NetworkFunction) -> Blueprint:
    return Blueprint.of(task_of(network, Sgd(), batch_size=5), 5, training=True)


def ways(network: NetworkFunction, **asked: Way) -> dict[str, Way]:
    return {layer: cut.way for layer, cut in cut_layers(drawn(network), asked, 3).items()}


def residual(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Two parallel dense layers whose sum is normalised, and one after them."""
    x = nn.flatten(net, batch["x"], name="flat")
    left, right = (nn.dense(net, x, 5, name=name) for name in ("left", "right"))
    with net.layer("sum", "merge"):
        h = ops.add(net.graph, left, right)
    h = nn.relu(net, nn.batch_norm(net, h, name="norm"), name="relu")
    return nn.classify(net, nn.dense(net, h, CLASSES, name="fc"), batch["y"])


def test_dense_layers_are_named_in_order() -> None:
    assert dense_layers(drawn(hybrid)) == ["fc1", "fc2", "fc3"]


def test_element_wise_layers_after_a_column_are_sharded_like_it() -> None:
    cuts = cut_layers(drawn(dropped_out), {"fc1": Way.COLUMN}, 5)
    assert list(cuts) == ["fc1", "relu1", "drop"]
    assert [cut.way for cut in cuts.values()] == [Way.COLUMN, Way.UNITS, Way.UNITS]
    assert {tuple(cut.shares.items()) for cut in cuts.values()} == {
        ((0, (0, 3)), (1, (3, 6)), (2, (6, 8)), (3, (8, 10)), (4, (10, 12)))
    }


def test_a_row_layer_is_sharded_by_inputs_and_later_layers_are_whole() -> None:
    cuts = cut_layers(drawn(hybrid), {"fc2": Way.ROW}, 2)
    assert {name: dict(cut.shares) for name, cut in cuts.items()} == {"fc2": {0: (0, 4), 1: (4, 7)}}


def test_a_merge_is_sharded_if_all_its_inputs_are_but_normalisation_and_loss_are_not() -> None:
    assert ways(residual, left=Way.COLUMN) == {"left": Way.COLUMN}
    asked = {"left": Way.COLUMN, "right": Way.COLUMN, "fc": Way.COLUMN}
    assert ways(residual, **asked) == {**asked, "sum": Way.UNITS}


def gated(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Units that are multiplied by the single unit of another dense layer."""
    x = nn.flatten(net, batch["x"], name="flat")
    units, gate = nn.dense(net, x, CLASSES, name="units"), nn.dense(net, x, 1, name="gate")
    with net.layer("gated", "merge"):
        h = ops.mul(net.graph, units, gate)
    return nn.classify(net, h, batch["y"])


def test_layers_with_other_units_are_not_sharded() -> None:
    assert set(ways(gated, units=Way.COLUMN, gate=Way.COLUMN)) == {"units", "gate"}


def squared(net: NetworkBuilder, x: Tensor) -> Tensor:
    """A layer with the kind "dense" that has two products."""
    with net.layer("fc", "dense"):
        y = ops.matmul(net.graph, x, x, transpose_a=True)
        return ops.matmul(net.graph, x, y)


def test_a_dense_layer_that_is_more_than_a_product_and_a_bias_is_refused() -> None:
    def network(net: NetworkBuilder, batch: Batch) -> Outputs:
        return nn.classify(net, squared(net, nn.flatten(net, batch["x"], name="flat")), batch["y"])

    complaint = "parallelism.shard: layer 'fc' has the ops matmul, matmul; expected one product"
    with pytest.raises(ConfigError, match=complaint):
        ways(network, fc=Way.ROW)


def test_names_of_shards_can_be_read() -> None:
    assert shard_of(shard_name("tower/fc6", 12)) == ("tower/fc6", 12)
    assert shard_of("tower/fc6") is None
