"""``sync_data`` with K workers equals ``single`` with the same batch, and bit for bit with K microbatches."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from runner.engine.compile.compile import compile_signature
from runner.engine.compile.program import Client
from runner.engine.graph.device import local_cluster
from runner.engine.graph.tensor import Tensor
from runner.engine.run.kernel_table import load_kernels
from runner.errors import ConfigError
from runner.kernels.registry import Registry
from runner.models.lenet import LeNet
from runner.optimizers.adam import Adam
from runner.optimizers.base import Optimizer
from runner.optimizers.sgd import Momentum
from runner.strategies.base import Task
from runner.strategies.collectives import COMBINES, in_buckets
from runner.strategies.replica import shares
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from tests.all_pairs import all_pairs
from tests.strategies.networks import NETWORKS, task_of
from tests.strategies.training import Weights, difference, expect_same_bits, opened, trained

STEPS = 12
BATCH = 13
"""Odd, so that no K above 1 divides it."""

PER_EXAMPLE = sorted(set(NETWORKS) - {"batch_normalised"})
"""Networks that treat every example separately."""


def momentum() -> Optimizer:
    """An optimizer with slots, weight decay and active clipping."""
    return Momentum(weight_decay=1e-3, clip_norm=0.5)


def task_for(network: str, microbatches: int = 1, dtype: str = "float64") -> Task:
    return task_of(NETWORKS[network], momentum(), batch_size=BATCH, microbatches=microbatches, dtype=dtype)


Run = tuple[Weights, list[Any]]


@cache
def single(network: str, microbatches: int = 1, dtype: str = "float64") -> Run:
    return trained(Single(), task_for(network, microbatches, dtype), load_kernels(), STEPS)


@cache
def sync(network: str, workers: int, dtype: str = "float64", combine: str = "sharded_reduce") -> Run:
    strategy = SyncData(workers=workers, combine=combine)
    return trained(strategy, task_for(network, dtype=dtype), load_kernels(), STEPS)


@all_pairs(network=PER_EXAMPLE, workers=[1, 2, 3, 4], combine=sorted(COMBINES))
def test_it_equals_single_with_the_same_batch(network: str, workers: int, combine: str) -> None:
    (weights, history), (expected, reference) = sync(network, workers, combine=combine), single(network)
    assert difference(weights, expected) <= 1e-10
    np.testing.assert_allclose(history, reference, rtol=1e-10)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_it_equals_single_in_as_many_microbatches_bit_for_bit(network: str, workers: int) -> None:
    (weights, history), (expected, reference) = sync(network, workers), single(network, workers)
    expect_same_bits(weights, expected)
    assert history == reference


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_around_a_ring_of_two_sums_have_the_same_bits(network: str) -> None:
    (weights, history), (expected, reference) = sync(network, 2, combine="ring_all_reduce"), single(network, 2)
    expect_same_bits(weights, expected)
    assert history == reference


@pytest.mark.parametrize("workers", [2, 4])
def test_all_reduce_has_the_same_bits(workers: int) -> None:
    (weights, history), (expected, reference) = sync("dense", workers, combine="all_reduce"), single("dense", workers)
    expect_same_bits(weights, expected)
    assert history == reference


def test_float32_equals_microbatches_bit_for_bit() -> None:
    (weights, history), (expected, reference) = sync("dense", 3, "float32"), single("dense", 3, "float32")
    assert weights["fc1/weights"].dtype == np.float32
    expect_same_bits(weights, expected)
    assert history == reference


def test_statistics_of_batch_normalisation_are_those_of_shares_not_of_the_batch(registry: Registry) -> None:
    task = task_for("batch_normalised")
    (weights, _), (pooled, _) = (trained(s, task, registry, 1) for s in (SyncData(workers=3), Single()))
    np.testing.assert_allclose(weights["norm1/moving_mean"], pooled["norm1/moving_mean"], rtol=1e-10)
    assert np.abs(weights["norm1/moving_variance"] - pooled["norm1/moving_variance"]).max() > 1e-4


@all_pairs(network=sorted(NETWORKS), workers=[2, 3, 4], combine=sorted(COMBINES))
def test_replicas_stay_identical(network: str, workers: int, combine: str, registry: Registry) -> None:
    strategy, task = SyncData(workers=workers, combine=combine), task_for(network)
    names = list(strategy.build(task).variables)
    replicas = {
        f"replica_{k}": Client(f"replica_{k}", {name: Tensor(f"replica_{k}/{name}") for name in names})
        for k in range(workers)
    }
    with opened(strategy, task, registry, **replicas) as trainer:
        trainer.session.run("init")
        for steps in (range(1), range(1, 4)):
            trainer.train(steps)
            first, *others = (trainer.session.run(name) for name in replicas)
            for other in others:
                expect_same_bits(first, other)


def test_a_checkpoint_of_one_strategy_continues_under_another(registry: Registry) -> None:
    undisturbed, _ = trained(SyncData(workers=3), task_for("dropped_out"), registry, 6)
    with opened(SyncData(workers=3), task_for("dropped_out"), registry) as first:
        first.session.run("init")
        first.train(range(3))
        saved = first.weights()
    with opened(Single(), task_for("dropped_out", 3), registry) as second:
        second.session.run("restore", feeds=saved)
        second.train(range(3, 6))
        expect_same_bits(second.weights(), undisturbed)


@pytest.mark.parametrize("bucket_bytes", [0, 200, 1 << 20])
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_bytes_sent_in_a_step_are_gradients_statistics_and_two_scores(
    network: str, workers: int, bucket_bytes: int, registry: Registry
) -> None:
    strategy = SyncData(workers=workers, bucket_bytes=bucket_bytes)
    with opened(strategy, task_for(network), registry) as trainer:
        trainer.session.run("init")
        assert trainer.session.sent_bytes() == [0] * workers
        trainer.train(range(3))
        counted = trainer.session.sent_bytes()
        planned = [plan.sent_bytes for plan in trainer.session.plans("train").values()]
        # All variables except slots are exchanged: trained ones as gradients, averages as statistics.
        exchanged = {name: s for name, s in trainer.program.variables.items() if "velocity" not in name}
        gradients = [spec.size for name, spec in exchanged.items() if "moving" not in name][::-1]
        sizes = gradients + [spec.size for name, spec in exchanged.items() if "moving" in name]
    messages = [sum(sizes[i] for i in bucket) for bucket in in_buckets([8 * size for size in sizes], bucket_bytes)]
    assert sum(messages) == sum(spec.size for spec in exchanged.values())
    expected = [0] * workers
    for size in messages:
        for k, (lo, hi) in enumerate(shares(size, workers)):
            expected[k] += 8 * ((size - (hi - lo)) + (workers - 1) * (hi - lo))
    for k in range(1, workers):
        expected[k] += 2 * 8  # loss and accuracy of the share
    assert planned == expected
    assert counted == [3 * nbytes for nbytes in expected]


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_buckets_change_no_bit(network: str, registry: Registry) -> None:
    weights, history = sync(network, 3)
    for bucket_bytes in (0, 200):
        other = trained(SyncData(workers=3, bucket_bytes=bucket_bytes), task_for(network), registry, STEPS)
        expect_same_bits(other[0], weights)
        assert other[1] == history


def test_gradients_that_fit_a_bucket_are_one_message_for_each_owner() -> None:
    def sends(bucket_bytes: int) -> int:
        program = SyncData(workers=2, bucket_bytes=bucket_bytes).build(task_for("convolutional"))
        compiled = compile_signature(
            program.graph, program.clients["train"].signature, local_cluster(2), load_kernels()
        )
        return sum(node.op == "send" for part in compiled.parts.values() for node in part.graph)

    scores = 2
    assert sends(1 << 20) == scores + 2 * 2
    assert sends(0) == scores + 6 * 2 * 2


@pytest.mark.parametrize("workers", [2, 3])
def test_lenet_equals_single(workers: int, registry: Registry) -> None:
    def task(microbatches: int) -> Task:
        lenet = LeNet(filters=[6, 8], units=32).network(classes=3)
        return task_of(lenet, Adam(), batch_size=10, microbatches=microbatches, example_shape=(1, 16, 16))

    weights, _ = trained(SyncData(workers=workers), task(1), registry, 10)
    whole, _ = trained(Single(), task(1), registry, 10)
    cut, _ = trained(Single(), task(workers), registry, 10)
    assert difference(weights, whole) <= 1e-10
    expect_same_bits(weights, cut)


def test_an_unknown_combine_is_refused_with_the_options() -> None:
    expected = "parallelism.combine='ring': expected one of all_reduce, parameter_server, ring_all_reduce, "
    expected += "sharded_reduce"
    with pytest.raises(ConfigError, match=expected):
        SyncData(combine="ring")
