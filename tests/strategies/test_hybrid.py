"""``hybrid`` equals ``single`` with the same batch, for any shards; its variables are those of the whole network."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from runner import nn
from runner.engine.graph.network import NetworkBuilder, NetworkFunction, Outputs
from runner.engine.run.kernel_table import load_kernels
from runner.errors import ConfigError
from runner.kernels.registry import Registry
from runner.models import CifarConvNet, LeNet
from runner.optimizers.adam import Adam
from runner.optimizers.sgd import Momentum
from runner.strategies.base import Task
from runner.strategies.hybrid import Hybrid
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from tests.all_pairs import all_pairs
from tests.strategies.networks import CLASSES, NETWORKS, Batch, hybrid, task_of
from tests.strategies.training import Run, begun, difference, expect_same_bits, expect_same_run, single, trained

STEPS = 6
BATCH = 13
"""Odd, so that no K above 1 divides it."""

ALL: dict[str, NetworkFunction] = {**NETWORKS, "hybrid": hybrid, "logistic": partial(hybrid, loss="logistic")}


def normalised_between(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Batch normalisation below the dense layers and between them."""
    h = nn.relu(net, nn.batch_norm(net, nn.conv(net, batch["x"], 3, 3, name="conv1"), name="norm1"), name="relu1")
    h = nn.dense(net, nn.flatten(net, h, name="flat"), 5, name="fc1", bias=None)
    h = nn.relu(net, nn.batch_norm(net, h, name="norm2"), name="relu2")
    return nn.classify(net, nn.dense(net, h, CLASSES, name="fc2"), batch["y"])


def task_for(network: str, dtype: str = "float64", batch_size: int = BATCH) -> Task:
    """An optimizer with slots, weight decay and active clipping."""
    return task_of(ALL[network], Momentum(weight_decay=1e-3, clip_norm=0.5), batch_size=batch_size, dtype=dtype)


def run(task: Task, **settings: Any) -> Run:
    return trained(Hybrid(**settings), task, load_kernels(), STEPS)


@all_pairs(network=sorted(ALL), workers=[1, 2, 3, 4], scheme=["a", "b", "c"])
def test_it_equals_single_with_the_same_batch(network: str, workers: int, scheme: str) -> None:
    task = task_for(network)
    expect_same_run(run(task, workers=workers, scheme=scheme, statistics="pooled"), single(task, STEPS), 1e-10)


@pytest.mark.parametrize("scheme", ["a", "b", "c"])
@pytest.mark.parametrize("network", ["batch_normalised", "hybrid", "logistic"])
def test_in_float32_it_does_up_to_rounding(network: str, scheme: str) -> None:
    task = task_for(network, "float32")
    found = run(task, workers=3, scheme=scheme, statistics="pooled")
    assert {value.dtype.name for value in found[0].values()} == {"float32"}
    expect_same_run(found, single(task, STEPS), 1e-5)


def test_bfloat16_gives_about_the_same_losses() -> None:
    task = task_for("hybrid", "bfloat16")
    found, expected = ([loss for loss, _ in each[1]] for each in (run(task, workers=3), single(task, STEPS)))
    np.testing.assert_allclose(found, expected, rtol=0.03)


@pytest.mark.parametrize("combine", ["all_reduce", "ring_all_reduce", "sharded_reduce"])
@pytest.mark.parametrize("bucket_bytes", [0, 100])
def test_gradients_below_are_combined_in_any_way(combine: str, bucket_bytes: int) -> None:
    found = run(task_for("hybrid"), workers=3, combine=combine, bucket_bytes=bucket_bytes)
    expect_same_run(found, single(task_for("hybrid"), STEPS), 1e-10)


BETWEEN = task_of(normalised_between, Momentum(weight_decay=1e-3, clip_norm=0.5), batch_size=BATCH)


@pytest.mark.parametrize(
    ("task", "scheme", "statistics"),
    [
        (task_for("batch_normalised"), "c", "shares"),
        (task_for("batch_normalised"), "c", "first_worker"),
        # Between dense layers, a pass of a worker's share has its statistics.
        (BETWEEN, "b", "shares"),
    ],
    ids=["shares", "first_worker", "between dense layers"],
)
def test_statistics_are_those_of_sync_data(task: Task, scheme: str, statistics: str, registry: Registry) -> None:
    expected = trained(SyncData(workers=3, statistics=statistics), task, registry, STEPS)
    expect_same_run(run(task, workers=3, scheme=scheme, statistics=statistics), expected, 1e-10)


@pytest.mark.parametrize("workers", [2, 3])
def test_between_dense_layers_one_pass_has_the_statistics_of_the_batch(workers: int) -> None:
    found = run(BETWEEN, workers=workers, scheme="a", statistics="pooled")
    assert {"norm2/moving_mean", "norm2/moving_variance", "norm2/gamma/velocity"} <= set(found[0])
    expect_same_run(found, single(BETWEEN, STEPS), 1e-10)


MODELS: dict[str, tuple[NetworkFunction, tuple[int, ...]]] = {
    "lenet": (LeNet(filters=[3, 4], units=10).network(classes=3), (1, 16, 16)),
    "cifar_convnet": (CifarConvNet(widths=[3, 4], units=6).network(classes=3), (3, 8, 8)),
}


@pytest.mark.parametrize("model", sorted(MODELS))
def test_models_equal_single(model: str) -> None:
    network, shape = MODELS[model]
    task = task_of(network, Adam(), batch_size=10, example_shape=shape)
    expect_same_run(run(task, workers=3, scheme="a", statistics="pooled"), single(task, STEPS), 1e-10)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_initial_values_are_those_of_single_bit_for_bit(workers: int, registry: Registry) -> None:
    expect_same_bits(
        trained(Hybrid(workers=workers), task_for("hybrid"), registry, 0)[0], single(task_for("hybrid"), 0)[0]
    )
    program, whole = (each.build(task_for("hybrid")) for each in (Hybrid(workers=workers), Single()))
    assert list(program.variables.items()) == list(whole.variables.items())


def test_every_worker_holds_its_columns_and_their_slots_alone() -> None:
    program = Hybrid(workers=4).build(task_for("hybrid"))
    kept = {node.name: node.outputs[0].shape for node in program.graph if node.op == "variable"}
    for slot in ("", "/velocity"):
        assert [kept[f"replica_{k}/fc1/weights{slot}"] for k in range(4)] == [(8, 2), (8, 2), (8, 2), (8, 1)]
        assert [kept[f"replica_{k}/fc3/bias{slot}"] for k in range(3)] == [(1,), (1,), (1,)]
        assert [kept[f"replica_{k}/conv1/weights{slot}"] for k in range(4)] == [(2, 1, 3, 3)] * 4
        assert f"replica_3/fc3/bias{slot}" not in kept


def test_a_checkpoint_continues_under_any_strategy(registry: Registry) -> None:
    """Two steps under each strategy, each from the checkpoint of the one before."""
    strategies = [Hybrid(workers=3), Single(), Hybrid(workers=2, scheme="c"), SyncData(workers=2), Hybrid(workers=4)]
    saved, task = single(task_for("hybrid"), 0)[0], task_for("hybrid")
    for i, strategy in enumerate(strategies):
        with begun(strategy, task, registry, saved) as trainer:
            expect_same_bits(trainer.weights(), saved)
            trainer.train(range(2 * i, 2 * i + 2))
            saved = trainer.weights()
    assert difference(saved, single(task, 2 * len(strategies))[0]) <= 1e-10


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"scheme": "d"}, r"parallelism\.scheme='d': expected one of a, b, c"),
        (
            {"combine": "ring"},
            r"parallelism\.combine='ring': expected one of all_reduce, ring_all_reduce, sharded_reduce",
        ),
        ({"statistics": "none"}, r"parallelism\.statistics='none': expected one of first_worker, pooled, shares"),
        (
            {"scheme": "c", "statistics": "pooled"},
            r"statistics=pooled with parallelism\.scheme=c: layer 'norm2' .* each of 3 passes; use scheme=a",
        ),
        (
            {"scheme": "c", "fc_batch": 1, "statistics": "pooled"},
            r"; use scheme=a and fc_batch=null, or statistics=shares$",
        ),
        (
            {"fc_batch": 5},
            r"parallelism\.fc_batch=5: expected a divisor of train\.batch_size=13, or null for the whole",
        ),
        ({"scheme": "c", "fc_batch": 26}, r"fc_batch=26: expected a divisor of train\.batch_size=13"),
        (
            {"scheme": "a", "fc_batch": 6},
            r"fc_batch=6 with parallelism\.scheme=a and train\.batch_size=13: .* use scheme=b or c, or fc_batch=null",
        ),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Hybrid(**{"workers": 3, **settings}).build(BETWEEN)
