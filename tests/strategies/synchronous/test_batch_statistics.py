"""Statistics of batch normalisation: of each worker's share of a batch, of the first share, or of the whole batch."""

from functools import cache

import numpy as np
import pytest

from runner.engine.graph import NetworkBuilder, Outputs, ops
from runner.optimizers import Momentum, Sgd
from runner.strategies import Single, Strategy, SyncData
from runner.strategies.collectives import COMBINES
from runner.strategies.replica import shares
from runner.strategies.synchronous.batch_statistics import STATISTICS
from tests.strategies.networks import (
    BATCH,
    DECAY,
    Batch,
    Examples,
    batch_normalised,
    convolved,
    normalised_twice,
    workload_of,
)
from tests.strategies.training import (
    Run,
    Weights,
    begun,
    combined_by,
    expect_same_bits,
    expect_same_run,
    sends_of,
    single,
    trained,
)

STEPS = 4
CHANNELS = {"norm1": 3, "norm2": 5}


@cache
def sync(workers: int, statistics: str, combine: str = "sharded_reduce") -> Run:
    strategy = SyncData(**combined_by(combine, workers), statistics=statistics)
    return trained(strategy, workload_of(normalised_twice), STEPS)


@pytest.mark.parametrize(
    ("workers", "combine"),
    [
        (1, "sharded_reduce"),
        *((3, each) for each in (*COMBINES, "parameter_server")),
        *((4, each) for each in ("all_reduce", "hierarchical")),
    ],
)
def test_pooled_statistics_equal_single(workers: int, combine: str) -> None:
    found = sync(workers, "pooled", combine=combine)
    assert {"norm1/moving_mean", "norm1/moving_variance", "norm2/moving_mean", "norm2/moving_variance"} <= set(found[0])
    expect_same_run(found, single(workload_of(normalised_twice), STEPS), 1e-10)


def test_pooled_statistics_normalise_shares_of_one_example() -> None:
    workload = workload_of(normalised_twice, batch_size=4)
    expect_same_run(trained(SyncData(workers=4, statistics="pooled"), workload, STEPS), single(workload, STEPS), 1e-10)


def test_a_mean_far_from_zero_keeps_the_precision_of_the_variance() -> None:
    def far_away(net: NetworkBuilder, batch: Batch) -> Outputs:
        distance = ops.fill(net.graph, 1e4, (), "float64")
        return batch_normalised(net, {**batch, "x": ops.add(net.graph, batch["x"], distance)})

    workload = workload_of(far_away, Sgd())
    (weights, _), (expected, _) = (trained(SyncData(workers=3, statistics="pooled"), workload, 1), single(workload, 1))
    # The square of the mean is 1e8 times the variance: a difference of squares would lose 8 digits.
    np.testing.assert_allclose(weights["norm1/moving_variance"], expected["norm1/moving_variance"], rtol=1e-11)


def test_gradients_flow_through_pooled_statistics() -> None:
    """Compare the gradient, taken from one step of gradient descent, with central differences of the loss."""
    workload, rate, width = workload_of(normalised_twice, Sgd(), batch_size=7), 0.1, 1e-5
    rng = np.random.default_rng(3)
    with begun(SyncData(workers=3, statistics="pooled"), workload) as trainer:
        start = trainer.weights()
        trained_names = [name for name in start if "moving" not in name]
        trainer.train([0])
        gradient = {name: (start[name] - trainer.weights()[name]) / rate for name in trained_names}

        def loss(moved: Weights) -> float:
            trainer.restore({**start, **moved})
            return trainer.train([0])[0][0]

        for name in trained_names:
            direction = rng.standard_normal(start[name].shape)
            ahead, behind = (loss({name: start[name] + sign * width * direction}) for sign in (1, -1))
            slope = (ahead - behind) / (2 * width)
            assert slope == pytest.approx(float((gradient[name] * direction).sum()), rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize(
    "strategy", [Single(), *(SyncData(workers=workers, statistics="first_worker") for workers in (1, 3))]
)
def test_averages_of_the_first_worker_use_the_decay_to_the_power_of_the_number_of_workers(strategy: Strategy) -> None:
    (_, end) = shares(BATCH, strategy.workers)[0]
    decay = DECAY**strategy.workers
    with begun(strategy, workload_of(normalised_twice)) as trainer:
        expected = trainer.weights()["norm1/moving_mean"], trainer.weights()["norm1/moving_variance"]
        for step in range(3):
            response = convolved(Examples(BATCH).read("train", step, 0, end)["x"], trainer.weights()["conv1/weights"])
            seen = response.mean((0, 2)), response.var((0, 2))
            expected = tuple(decay * old + (1 - decay) * new for old, new in zip(expected, seen, strict=True))
            trainer.train([step])
            weights = trainer.weights()
            np.testing.assert_allclose(weights["norm1/moving_mean"], expected[0], rtol=1e-10)
            np.testing.assert_allclose(weights["norm1/moving_variance"], expected[1], rtol=1e-10)


@pytest.mark.parametrize("workers", [1, 3])
def test_only_averages_differ_between_the_first_worker_and_all_shares(workers: int) -> None:
    (weights, history), (expected, reference) = sync(workers, "first_worker"), sync(workers, "shares")
    learned = [name for name in expected if "moving" not in name]
    expect_same_bits({name: weights[name] for name in learned}, {name: expected[name] for name in learned})
    assert history == reference
    averages = [name for name in expected if "moving" in name]
    assert all(np.abs(weights[name] - expected[name]).max() > 1e-3 for name in averages) or workers == 1


@pytest.mark.parametrize("statistics", sorted(STATISTICS))
@pytest.mark.parametrize("workers", [2, 4])
def test_bytes_sent_in_a_step_are_those_of_the_formula(workers: int, statistics: str) -> None:
    with begun(SyncData(workers=workers, statistics=statistics), workload_of(normalised_twice)) as trainer:
        counted = trainer.sent(range(2))
        specs = trainer.program.variables
    channels = sum(CHANNELS.values())
    summed = sum(spec.size for name, spec in specs.items() if "moving" not in name and "velocity" not in name)
    if statistics == "shares":
        summed += 2 * channels
    # All sums share one bucket: each worker sends every slice to its owner, and each owner sends the sum of its slice
    # to all other workers. Every worker but the first also sends two scores.
    expected = [summed + (workers - 2) * (hi - lo) + 2 * (k > 0) for k, (lo, hi) in enumerate(shares(summed, workers))]
    if statistics == "first_worker":
        expected[0] += 2 * channels * (workers - 1)
    if statistics == "pooled":
        expected = [values + 4 * channels * (1 if k else workers - 1) for k, values in enumerate(expected)]
    assert counted == [2 * 8 * values for values in expected]


def test_the_first_worker_sends_its_statistics_in_one_message_to_each_other_worker() -> None:
    def sends(statistics: str) -> int:
        return len(sends_of(SyncData(workers=3, statistics=statistics).build(workload_of(normalised_twice))))

    assert sends("first_worker") == sends("shares") + 2


@pytest.mark.parametrize("statistics", sorted(set(STATISTICS) - {"shares"}))
def test_without_batch_normalisation_all_statistics_give_the_same_program(statistics: str) -> None:
    workload = workload_of("dropped_out", Momentum())
    program, usual = (SyncData(workers=3, statistics=each).build(workload) for each in (statistics, "shares"))
    assert program.clients == usual.clients
    for device in {node.device for node in usual.graph}:
        own, expected = ([node for node in each.graph if node.device == device] for each in (program, usual))
        assert own == expected


def test_one_worker_already_has_the_statistics_of_the_batch() -> None:
    pooled, usual = (
        SyncData(workers=1, statistics=each).build(workload_of(normalised_twice)) for each in ("pooled", "shares")
    )
    assert list(pooled.graph) == list(usual.graph)
