"""``hybrid`` equals ``single`` with the same batch, for any shards; its variables are those of the whole network."""

from collections.abc import Iterator
from functools import cache, partial
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
from runner.optimizers.base import Optimizer
from runner.optimizers.sgd import Momentum
from runner.strategies.base import Strategy, Task
from runner.strategies.hybrid import Hybrid
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from tests.all_pairs import all_pairs
from tests.strategies.networks import CLASSES, NETWORKS, Batch, hybrid, task_of
from tests.strategies.training import Weights, difference, expect_same_bits, opened, trained

STEPS = 6
BATCH = 13
"""Odd, so that no K above 1 divides it."""

ALL: dict[str, NetworkFunction] = {**NETWORKS, "hybrid": hybrid, "logistic": partial(hybrid, loss="logistic")}

Run = tuple[Weights, list[Any]]


def normalised_between(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Batch normalisation below the dense layers and between them."""
    h = nn.relu(net, nn.batch_norm(net, nn.conv(net, batch["x"], 3, 3, name="conv1"), name="norm1"), name="relu1")
    h = nn.dense(net, nn.flatten(net, h, name="flat"), 5, name="fc1", bias=None)
    h = nn.relu(net, nn.batch_norm(net, h, name="norm2"), name="relu2")
    return nn.classify(net, nn.dense(net, h, CLASSES, name="fc2"), batch["y"])


def momentum() -> Optimizer:
    """An optimizer with slots, weight decay and active clipping."""
    return Momentum(weight_decay=1e-3, clip_norm=0.5)


def task_for(network: str, dtype: str = "float64", batch_size: int = BATCH) -> Task:
    return task_of(ALL[network], momentum(), batch_size=batch_size, dtype=dtype)


@cache
def single(network: str, dtype: str = "float64") -> Run:
    return trained(Single(), task_for(network, dtype), load_kernels(), STEPS)


@all_pairs(network=sorted(ALL), workers=[1, 2, 3, 4], scheme=["a", "b", "c"])
def test_it_equals_single_with_the_same_batch(network: str, workers: int, scheme: str, registry: Registry) -> None:
    strategy = Hybrid(workers=workers, scheme=scheme, statistics="pooled")
    (weights, history), (expected, reference) = trained(strategy, task_for(network), registry, STEPS), single(network)
    assert difference(weights, expected) <= 1e-10
    np.testing.assert_allclose(history, reference, rtol=1e-10)


@pytest.mark.parametrize("scheme", ["a", "b", "c"])
@pytest.mark.parametrize("network", ["batch_normalised", "hybrid", "logistic"])
def test_in_float32_it_does_up_to_rounding(network: str, scheme: str, registry: Registry) -> None:
    strategy = Hybrid(workers=3, scheme=scheme, statistics="pooled")
    weights, history = trained(strategy, task_for(network, "float32"), registry, STEPS)
    expected, reference = single(network, "float32")
    assert weights["fc1/weights" if network != "batch_normalised" else "fc/weights"].dtype == np.float32
    assert difference(weights, expected) <= 1e-5
    np.testing.assert_allclose(history, reference, rtol=1e-5)


def test_bfloat16_gives_about_the_same_losses(registry: Registry) -> None:
    _, history = trained(Hybrid(workers=3), task_for("hybrid", "bfloat16"), registry, STEPS)
    _, reference = single("hybrid", "bfloat16")
    np.testing.assert_allclose([loss for loss, _ in history], [loss for loss, _ in reference], rtol=0.03)


@pytest.mark.parametrize("combine", ["all_reduce", "ring_all_reduce", "sharded_reduce"])
@pytest.mark.parametrize("bucket_bytes", [0, 100])
def test_gradients_below_are_combined_in_any_way(combine: str, bucket_bytes: int, registry: Registry) -> None:
    strategy = Hybrid(workers=3, combine=combine, bucket_bytes=bucket_bytes)
    weights, _ = trained(strategy, task_for("hybrid"), registry, STEPS)
    assert difference(weights, single("hybrid")[0]) <= 1e-10


@pytest.mark.parametrize("statistics", ["shares", "first_worker"])
def test_statistics_below_are_those_of_sync_data(statistics: str, registry: Registry) -> None:
    task = task_for("batch_normalised")
    weights, history = trained(Hybrid(workers=3, scheme="c", statistics=statistics), task, registry, STEPS)
    expected, reference = trained(SyncData(workers=3, statistics=statistics), task, registry, STEPS)
    assert difference(weights, expected) <= 1e-10
    np.testing.assert_allclose(history, reference, rtol=1e-10)


@pytest.mark.parametrize("workers", [2, 3])
def test_between_dense_layers_one_pass_has_the_statistics_of_the_batch(workers: int, registry: Registry) -> None:
    task = task_of(normalised_between, momentum(), batch_size=BATCH)
    weights, _ = trained(Hybrid(workers=workers, scheme="a", statistics="pooled"), task, registry, STEPS)
    expected, _ = trained(Single(), task, registry, STEPS)
    assert {"norm2/moving_mean", "norm2/moving_variance", "norm2/gamma/velocity"} <= set(weights)
    assert difference(weights, expected) <= 1e-10


def test_between_dense_layers_each_pass_of_a_worker_has_statistics_like_its_share(registry: Registry) -> None:
    task = task_of(normalised_between, momentum(), batch_size=BATCH)
    weights, _ = trained(Hybrid(workers=3, scheme="b"), task, registry, STEPS)
    expected, _ = trained(SyncData(workers=3), task, registry, STEPS)
    assert difference(weights, expected) <= 1e-10


def test_pooled_statistics_are_refused_for_several_passes() -> None:
    task = task_of(normalised_between, momentum(), batch_size=BATCH)
    expected = r"statistics=pooled with parallelism\.scheme=c: layer 'norm2' .* each of 3 passes; use scheme=a"
    with pytest.raises(ConfigError, match=expected):
        Hybrid(workers=3, scheme="c", statistics="pooled").build(task)
    with pytest.raises(ConfigError, match=r"; use scheme=a and fc_batch=null, or statistics=shares$"):
        Hybrid(workers=2, scheme="c", fc_batch=1, statistics="pooled").build(task)


MODELS: dict[str, tuple[NetworkFunction, tuple[int, ...]]] = {
    "lenet": (LeNet(filters=[3, 4], units=10).network(classes=3), (1, 16, 16)),
    "cifar_convnet": (CifarConvNet(widths=[3, 4], units=6).network(classes=3), (3, 8, 8)),
}


@pytest.mark.parametrize("model", sorted(MODELS))
def test_models_equal_single(model: str, registry: Registry) -> None:
    network, shape = MODELS[model]
    task = task_of(network, Adam(), batch_size=10, example_shape=shape)
    weights, _ = trained(Hybrid(workers=3, scheme="a", statistics="pooled"), task, registry, 4)
    expected, _ = trained(Single(), task, registry, 4)
    assert difference(weights, expected) <= 1e-10


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_initial_values_are_those_of_single_bit_for_bit(workers: int, registry: Registry) -> None:
    weights, _ = trained(Hybrid(workers=workers), task_for("hybrid"), registry, 0)
    expected, _ = trained(Single(), task_for("hybrid"), registry, 0)
    expect_same_bits(weights, expected)
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


def continued(strategies: Iterator[Strategy], registry: Registry) -> Weights:
    """Weights after two steps under each strategy, each from the checkpoint of the one before."""
    saved: Weights = {}
    for i, strategy in enumerate(strategies):
        with opened(strategy, task_for("hybrid"), registry) as trainer:
            if saved:
                trainer.session.run("restore", feeds=saved)
                expect_same_bits(trainer.weights(), saved)
            else:
                trainer.session.run("init")
            trainer.train(range(2 * i, 2 * i + 2))
            saved = trainer.weights()
    return saved


def test_a_checkpoint_continues_under_any_strategy(registry: Registry) -> None:
    strategies = [Hybrid(workers=3), Single(), Hybrid(workers=2, scheme="c"), SyncData(workers=2), Hybrid(workers=4)]
    undisturbed, _ = trained(Single(), task_for("hybrid"), registry, 2 * len(strategies))
    assert difference(continued(iter(strategies), registry), undisturbed) <= 1e-10


@pytest.mark.parametrize("network", ["hybrid", "logistic", "batch_normalised"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_it_scores_as_single_does(network: str, workers: int, registry: Registry) -> None:
    answers = []
    for strategy in (Single(), Hybrid(workers=workers)):
        with opened(strategy, task_for(network), registry) as trainer:
            trainer.session.run("init")
            answers.append(trainer.evaluate())
    assert list(answers[0]) == list(answers[1])
    for name, value in answers[0].items():
        np.testing.assert_allclose(answers[1][name], value, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"scheme": "d"}, r"parallelism\.scheme='d': expected one of a, b, c"),
        (
            {"combine": "ring"},
            r"parallelism\.combine='ring': expected one of all_reduce, ring_all_reduce, sharded_reduce",
        ),
        ({"statistics": "none"}, r"parallelism\.statistics='none': expected one of first_worker, pooled, shares"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Hybrid(**changes)
