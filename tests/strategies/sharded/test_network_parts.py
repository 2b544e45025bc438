"""The division of networks and batches by hybrid parallelism, and the layers that model parallelism shards."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from runner import nn
from runner.engine.graph import OPS, NetworkBuilder, NetworkFunction, Node, Outputs, ops
from runner.errors import ConfigError
from runner.optimizers import Sgd
from runner.strategies import Hybrid
from runner.strategies.layer_names import shard_name, shard_of
from runner.strategies.replica import shares
from runner.strategies.sharded.blueprint import BY_UNIT, Blueprint
from runner.strategies.sharded.layer_cuts import Way, cut_layers
from runner.strategies.sharded.network_parts import SCHEMES, Examples, Parts, dense_passes, updates_per_batch
from runner.tasks.classification import Classification
from tests.strategies.networks import CLASSES, Batch, branched, dropped_out, hybrid, workload_of


def blueprint_of(network: NetworkFunction, *, training: bool = True) -> Blueprint:
    return Blueprint.of(workload_of(network, Sgd(), batch_size=4), 4, training=training)


def parts_of(network: NetworkFunction, *, training: bool = True) -> Parts:
    return Parts.of(blueprint_of(network, training=training))


def layers(nodes: Sequence[Node]) -> list[str]:
    return list(dict.fromkeys(node.layer.name for node in nodes if node.layer))


@pytest.mark.parametrize("training", [True, False])
def test_a_network_is_split_at_its_first_dense_layer_and_its_loss(training: bool) -> None:
    parts = parts_of(hybrid, training=training)
    assert layers(parts.body) == ["conv1", "relu1", "pool1", "flat"]
    dropout = ["drop"] if training else []
    assert layers(parts.dense) == ["fc1", "relu2", *dropout, "fc2", "relu3", "fc3"]
    assert layers(parts.head) == ["loss"]
    assert parts.blueprint.graph.spec(parts.boundary).shape == (4, 8)


def convolved(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network without dense layers."""
    h = nn.conv(net, batch["x"], CLASSES, 3, name="conv1")
    return Classification().score(net, nn.global_avg_pool(net, h, name="pool"), batch)


def forked(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build two dense layers next to each other."""
    h = nn.flatten(net, batch["x"], name="flat")
    other = nn.dense(net, nn.relu(net, h, name="relu"), CLASSES, name="fc2")
    return Classification().score(net, ops.add(net.graph, nn.dense(net, h, CLASSES, name="fc1"), other), batch)


def bypassed(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network with a connection around a dense layer."""
    h = nn.flatten(net, nn.conv(net, batch["x"], CLASSES, 6, name="conv1"), name="flat")
    gate = nn.relu(net, h, name="gate")
    return Classification().score(net, ops.mul(net.graph, nn.dense(net, h, CLASSES, name="fc1"), gate), batch)


def bypassed_from_below(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a connection that starts below the flattened images and bypasses a dense layer."""
    h = nn.conv(net, batch["x"], CLASSES, 3, name="conv1")
    pooled = nn.global_avg_pool(net, h, name="pool")
    h = nn.dense(net, nn.flatten(net, h, name="flat"), CLASSES, name="fc1")
    return Classification().score(net, ops.add(net.graph, h, pooled), batch)


def penalised(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network whose loss reads more than logits and labels."""
    h = nn.flatten(net, batch["x"], name="flat")
    outputs = Classification().score(net, nn.dense(net, h, CLASSES, name="fc1"), batch)
    with net.layer("penalty", "loss"):
        return replace(outputs, losses=ops.add(net.graph, outputs.losses, ops.reduce_sum(net.graph, h, axes=(1,))))


def mixed(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network with an op that mixes units between its dense layers."""
    h = nn.dense(net, nn.flatten(net, batch["x"], name="flat"), 6, name="fc1")
    with net.layer("squash", "activation"):
        h = ops.softmax(net.graph, h)
    return Classification().score(net, nn.dense(net, h, CLASSES, name="fc2"), batch)


def reshaped(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network with a convolution after a dense layer."""
    h = nn.dense(net, nn.flatten(net, batch["x"], name="flat"), 16, name="fc1")
    with net.layer("images", "shape"):
        h = ops.reshape(net.graph, h, (-1, 1, 4, 4))
    h = nn.conv(net, h, CLASSES, 4, name="conv1")
    return Classification().score(net, nn.flatten(net, h, name="flat2"), batch)


def summed_over_examples(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network whose loss sums the logits over the examples."""
    outputs = Classification().score(net, nn.dense(net, nn.flatten(net, batch["x"], name="flat"), 5, name="fc"), batch)
    with net.graph.layer(net.graph.nodes[outputs.losses.node].layer):
        total = ops.reduce_sum(net.graph, outputs.prediction, axes=(0,))
        return replace(outputs, losses=ops.add(net.graph, outputs.losses, ops.reduce_sum(net.graph, total)))


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (convolved, "parallelism=hybrid: the network has no dense layers to shard; use parallelism=sync_data"),
        (
            forked,
            "expected one tensor that dense layers read first, found relu/relu:0, flat/reshape:0; use parallelism=sync",
        ),
        (bypassed, "layer 'gate' (activation) follows a dense layer, and its op 'relu' cannot be sharded"),
        (
            bypassed_from_below,
            "layer 'pool' reads conv1/add:0; expected a network where only the first dense layer reads from",
        ),
        (penalised, "layer 'penalty' reads flat/reshape:0; expected a network where the loss reads logits and labels"),
        (mixed, "layer 'squash' (activation) follows a dense layer, and its op 'softmax' cannot"),
        (reshaped, "layer 'images' (shape) follows a dense layer, and its op 'reshape' cannot"),
        (summed_over_examples, "layer 'loss' (loss) follows a dense layer, and its op 'reduce_sum' cannot"),
    ],
)
def test_networks_that_cannot_be_split_are_refused(network: NetworkFunction, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Hybrid(workers=2).build(workload_of(network, Sgd(), batch_size=4))
    assert expected in str(caught.value)


def test_every_op_in_by_unit_exists() -> None:
    assert set(OPS) >= BY_UNIT


# A pass takes examples through the dense layers together; each scheme forms different passes.


def sizes(passes: list[Examples]) -> list[list[int]]:
    return [[hi - lo for lo, hi in examples] for examples in passes]


@pytest.mark.parametrize(
    ("scheme", "batch", "workers", "fc_batch", "expected"),
    [
        ("a", 7, 3, None, [[3, 2, 2]]),
        ("b", 7, 3, None, [[3, 0, 0], [0, 2, 0], [0, 0, 2]]),
        ("c", 7, 3, None, [[1, 1, 1], [1, 1, 0], [1, 0, 1]]),
        ("b", 8, 2, 2, [[2, 0], [2, 0], [0, 2], [0, 2]]),
        ("c", 8, 2, 2, [[1, 1]] * 4),
        ("b", 12, 4, 6, [[3, 3, 0, 0], [0, 0, 3, 3]]),
        # In scheme b, an update may contain the last examples of one worker and the first of the next.
        ("b", 6, 2, 2, [[2, 0], [1, 1], [0, 2]]),
        ("c", 8, 2, None, [[2, 2], [2, 2]]),
        ("c", 1024, 8, 128, [[16] * 8] * 8),
    ],
)
def test_passes_have_the_sizes_of_their_scheme(
    scheme: str, batch: int, workers: int, fc_batch: int | None, expected: list[list[int]]
) -> None:
    assert sizes(dense_passes(scheme, batch, workers, fc_batch)) == expected


@pytest.mark.parametrize("scheme", SCHEMES)
def test_fc_batch_equal_to_the_batch_size_has_the_effect_of_null(scheme: str) -> None:
    assert dense_passes(scheme, 12, 3, 12) == dense_passes(scheme, 12, 3, None)
    assert updates_per_batch(scheme, 12, 12) == updates_per_batch(scheme, 12, None) == 1


@pytest.mark.parametrize(("scheme", "workers", "batch"), list(product("bc", [1, 2, 3, 4], [12, 13, 30])))
def test_passes_divide_every_share_into_consecutive_parts(scheme: str, workers: int, batch: int) -> None:
    held = [hi - lo for lo, hi in shares(batch, workers)]
    for fc_batch in [None, *(size for size in range(1, batch) if batch % size == 0)]:
        passes = dense_passes(scheme, batch, workers, fc_batch)
        assert len(passes) == (workers if fc_batch is None else batch // fc_batch)
        for worker, count in enumerate(held):
            edges = [edge for examples in passes for edge in examples[worker]]
            assert [edges[0], edges[-1]] == [0, count]
            assert edges[1:-1:2] == edges[2:-1:2]
        totals = [sum(counts) for counts in sizes(passes)]
        expected = [hi - lo for lo, hi in shares(batch, workers)] if fc_batch is None else [fc_batch] * len(passes)
        assert totals == expected


# Other layers that are sharded if the dense layers next to them are sharded.


def ways(network: NetworkFunction, **asked: Way) -> dict[str, Way]:
    return {layer: cut.way for layer, cut in cut_layers(blueprint_of(network), asked, 3).items()}


def test_element_wise_layers_after_a_column_layer_are_sharded_like_it() -> None:
    cuts = cut_layers(blueprint_of(dropped_out), {"fc1": Way.COLUMN}, 5)
    assert list(cuts) == ["fc1", "relu1", "drop"]
    assert [cut.way for cut in cuts.values()] == [Way.COLUMN, Way.UNITS, Way.UNITS]
    assert {tuple(cut.shares.items()) for cut in cuts.values()} == {
        ((0, (0, 3)), (1, (3, 6)), (2, (6, 8)), (3, (8, 10)), (4, (10, 12)))
    }


def test_a_row_layer_is_sharded_by_inputs_and_later_layers_are_whole() -> None:
    cuts = cut_layers(blueprint_of(hybrid), {"fc2": Way.ROW}, 2)
    assert {name: dict(cut.shares) for name, cut in cuts.items()} == {"fc2": {0: (0, 4), 1: (4, 7)}}


def test_a_merge_is_sharded_if_all_its_inputs_are_sharded() -> None:
    assert ways(branched, left=Way.COLUMN) == {"left": Way.COLUMN}
    asked = {"left": Way.COLUMN, "right": Way.COLUMN, "fc": Way.COLUMN}
    assert ways(branched, **asked) == {**asked, "sum": Way.UNITS}


def gated(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a dense layer whose units are multiplied by the single unit of another dense layer."""
    x = nn.flatten(net, batch["x"], name="flat")
    units, gate = nn.dense(net, x, CLASSES, name="units"), nn.dense(net, x, 1, name="gate")
    with net.layer("gated", "merge"):
        h = ops.mul(net.graph, units, gate)
    return Classification().score(net, h, batch)


def test_a_product_of_layers_with_different_units_is_not_sharded() -> None:
    assert set(ways(gated, units=Way.COLUMN, gate=Way.COLUMN)) == {"units", "gate"}


def squared(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a layer of kind "dense" that has two matrix products."""
    x = nn.flatten(net, batch["x"], name="flat")
    with net.layer("fc", "dense"):
        h = ops.matmul(net.graph, x, ops.matmul(net.graph, x, x, transpose_a=True))
    return Classification().score(net, h, batch)


def test_a_dense_layer_that_is_more_than_a_product_and_a_bias_is_refused() -> None:
    complaint = "parallelism.shard: layer 'fc' has the ops matmul, matmul; expected one product"
    with pytest.raises(ConfigError, match=complaint):
        ways(squared, fc=Way.ROW)


def test_layer_and_number_are_read_back_from_a_shard_name() -> None:
    assert shard_of(shard_name("tower/fc6", 12)) == ("tower/fc6", 12)
    assert shard_of("tower/fc6") is None
