"""``hybrid`` equals ``single`` with the same batch; several updates in a step follow section 4 of Krizhevsky 2014."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from runner.engine.graph import NetworkFunction
from runner.engine.run.session import scalar
from runner.errors import ConfigError
from runner.models import CifarConvNet, LeNet
from runner.optimizers import Adam, Momentum, Optimizer, Sgd
from runner.strategies import Hybrid, Single, SyncData, Workload
from runner.strategies.replica import shares
from runner.strategies.sharded.network_parts import dense_passes
from runner.tasks.classification import classifier
from tests.all_pairs import all_pairs, slow_beyond
from tests.strategies.networks import NETWORKS, Chosen, dense, hybrid, normalised_twice, workload_of
from tests.strategies.training import (
    Array,
    Run,
    Trainer,
    Weights,
    begun,
    combined_by,
    difference,
    expect_same_bits,
    expect_same_run,
    opened,
    single,
    trained,
)

STEPS = 4

ALL: dict[str, NetworkFunction] = {**NETWORKS, "hybrid": hybrid, "logistic": partial(hybrid, loss="logistic")}


def run(workload: Workload, **settings: Any) -> Run:
    return trained(Hybrid(**settings), workload, STEPS)


@all_pairs(network=sorted(ALL), workers=[1, 2, 3, 4], scheme=["a", "b", "b in turns", "c"])
def test_hybrid_equals_single_with_the_same_batch(network: str, workers: int, scheme: str) -> None:
    workload, settings = workload_of(ALL[network]), {"scheme": scheme[0], "turns": scheme == "b in turns"}
    expect_same_run(run(workload, workers=workers, statistics="pooled", **settings), single(workload, STEPS), 1e-10)


@pytest.mark.parametrize(("network", "scheme"), [("batch_normalised", "a"), ("hybrid", "b"), ("logistic", "c")])
def test_hybrid_in_float32_equals_single_up_to_rounding(network: str, scheme: str) -> None:
    workload = workload_of(ALL[network], dtype="float32")
    found = run(workload, workers=3, scheme=scheme, statistics="pooled")
    assert {value.dtype.name for value in found[0].values()} == {"float32"}
    expect_same_run(found, single(workload, STEPS), 1e-5)


def test_bfloat16_gives_about_the_same_losses() -> None:
    workload = workload_of(hybrid, dtype="bfloat16")
    found, expected = ([loss for loss, _ in each[1]] for each in (run(workload, workers=3), single(workload, STEPS)))
    np.testing.assert_allclose(found, expected, rtol=0.03)


@pytest.mark.parametrize(
    ("combine", "workers", "bucket_bytes"),
    [("all_reduce", 3, 0), ("ring_all_reduce", 3, 100), ("sharded_reduce", 3, 0), ("hierarchical", 4, 100)],
)
def test_gradients_below_the_dense_layers_can_be_combined_in_any_way(
    combine: str, workers: int, bucket_bytes: int
) -> None:
    found = run(workload_of(hybrid), **combined_by(combine, workers), bucket_bytes=bucket_bytes)
    expect_same_run(found, single(workload_of(hybrid), STEPS), 1e-10)


BETWEEN = workload_of(normalised_twice)


@pytest.mark.parametrize(
    ("workload", "scheme", "statistics"),
    [
        (workload_of("batch_normalised"), "c", "shares"),
        (workload_of("batch_normalised"), "c", "first_worker"),
        # Between dense layers, a pass over a worker's share has the statistics of that share.
        (BETWEEN, "b", "shares"),
    ],
    ids=["shares", "first_worker", "between dense layers"],
)
def test_statistics_equal_those_of_sync_data(workload: Workload, scheme: str, statistics: str) -> None:
    expected = trained(SyncData(workers=3, statistics=statistics), workload, STEPS)
    expect_same_run(run(workload, workers=3, scheme=scheme, statistics=statistics), expected, 1e-10)


@pytest.mark.parametrize("workers", [2, 3])
def test_between_dense_layers_one_pass_has_the_statistics_of_the_batch(workers: int) -> None:
    found = run(BETWEEN, workers=workers, scheme="a", statistics="pooled")
    assert {"norm2/moving_mean", "norm2/moving_variance", "norm2/gamma/velocity"} <= set(found[0])
    expect_same_run(found, single(BETWEEN, STEPS), 1e-10)


MODELS: dict[str, tuple[NetworkFunction, tuple[int, ...]]] = {
    "lenet": (classifier(LeNet(filters=[3, 4], units=10), 3), (1, 16, 16)),
    "cifar_convnet": (classifier(CifarConvNet(widths=[3, 4], units=6), 3), (3, 8, 8)),
}


@pytest.mark.parametrize("model", sorted(MODELS))
def test_built_in_models_equal_single(model: str) -> None:
    network, shape = MODELS[model]
    workload = workload_of(network, Adam(), batch_size=10, example_shape=shape)
    expect_same_run(run(workload, workers=3, scheme="a", statistics="pooled"), single(workload, STEPS), 1e-10)


def test_every_worker_has_only_its_columns_and_their_slots() -> None:
    program = Hybrid(workers=4).build(workload_of(hybrid))
    kept = {node.name: node.outputs[0].shape for node in program.graph if node.op == "variable"}
    for slot in ("", "/velocity"):
        assert [kept[f"replica_{k}/fc1/weights{slot}"] for k in range(4)] == [(8, 2), (8, 2), (8, 2), (8, 1)]
        assert [kept[f"replica_{k}/fc3/bias{slot}"] for k in range(3)] == [(1,), (1,), (1,)]
        assert [kept[f"replica_{k}/conv1/weights{slot}"] for k in range(4)] == [(2, 1, 3, 3)] * 4
        assert f"replica_3/fc3/bias{slot}" not in kept


def test_a_checkpoint_continues_under_any_strategy() -> None:
    """Each strategy makes a step from the checkpoint of the previous strategy."""
    strategies = [Hybrid(workers=3), Single(), Hybrid(workers=2, scheme="c"), SyncData(workers=2), Hybrid(workers=4)]
    saved, workload = single(workload_of(hybrid), 0)[0], workload_of(hybrid)
    for step, strategy in enumerate(strategies):
        with begun(strategy, workload, saved) as trainer:
            expect_same_bits(trainer.weights(), saved)
            trainer.train([step])
            saved = trainer.weights()
    assert difference(saved, single(workload, len(strategies))[0]) <= 1e-10


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"scheme": "d"}, r"parallelism\.scheme='d': expected one of a, b, c"),
        (
            {"combine": "ring"},
            r"parallelism\.combine='ring': expected one of sharded_reduce, ring_all_reduce, hierarchical, all_reduce",
        ),
        ({"statistics": "none"}, r"parallelism\.statistics='none': expected one of shares, first_worker, pooled"),
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
        ({"scheme": "c", "turns": True}, r"parallelism\.turns=true with parallelism\.scheme=c: .*; use scheme=b"),
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


# Several updates of dense layers in a step, with a separate learning rate, compared with the algorithm in NumPy.

EVEN_BATCH = 12
Gradient = Mapping[str, Array]


def gradient_of(trainer: Trainer, weights: Weights, step: int) -> tuple[float, Gradient]:
    """Return the mean loss over the source's examples and its gradient, from one step of ``single`` with rate 1."""
    trainer.restore(weights)
    feeds = {"step": scalar(step, "int64"), "learning_rate": scalar(1.0, "float64")}
    loss = trainer.session.run("train", step=step, feeds=feeds)["loss"]
    moved = trainer.weights()
    return float(loss), {name: weights[name] - moved[name] for name in weights}


def places_of(strategy: Hybrid) -> list[list[int]]:
    """Return, for each pass, the positions of its examples in the batch."""
    starts = [lo for lo, _ in shares(EVEN_BATCH, strategy.workers)]
    passes = dense_passes(strategy.scheme, EVEN_BATCH, strategy.workers, strategy.fc_batch)
    return [
        [start + i for start, (lo, hi) in zip(starts, examples, strict=True) for i in range(lo, hi)]
        for examples in passes
    ]


def shortened(gradient: Gradient, limit: float | None) -> Gradient:
    norm = np.sqrt(sum(float((each**2).sum()) for each in gradient.values()))
    factor = 1.0 if limit is None else min(1.0, limit / norm)
    return {name: factor * each for name, each in gradient.items()}


class Oracle:
    """Section 4 of Krizhevsky 2014 with momentum: dense layers are updated in each pass, other layers in each step."""

    def __init__(self, weights: Weights, rate_factor: float, limit: float | None) -> None:
        self.weights = dict(weights)
        self.velocity = {name: np.zeros_like(value) for name, value in weights.items()}
        self._rate_factor = rate_factor
        self._limit = limit

    def step(self, trainer: Trainer, step: int, passes: Sequence[Sequence[int]]) -> float:
        rate = 0.1 / (1 + step)
        losses, below = [], []
        for places in passes:
            trainer.source.places = places
            loss, gradient = gradient_of(trainer, self.weights, step)
            losses.append(loss)
            below.append({name: each for name, each in gradient.items() if name.startswith("conv")})
            dense = {name: each for name, each in gradient.items() if name.startswith("fc")}
            self._update(shortened(dense, self._limit), rate * self._rate_factor)
        mean = {name: np.mean([each[name] for each in below], axis=0) for name in below[0]}
        self._update(shortened(mean, self._limit), rate)
        return float(np.mean(losses))

    def _update(self, gradient: Gradient, rate: float) -> None:
        for name, each in gradient.items():
            decay = 1e-3 * self.weights[name] if name.endswith("weights") else 0.0
            self.velocity[name] = 0.9 * self.velocity[name] - rate * (each + decay)
            self.weights[name] = self.weights[name] + self.velocity[name]


@slow_beyond(
    {"split": [("b", 1), ("b", 3), ("c", 2)], "fc_batch": [2, 4, 6], "clip_norm": [None, 0.5]},
    split=[("b", 1), ("b", 2), ("b", 3), ("c", 2), ("c", 4)],
    fc_batch=[2, 3, 4, 6],
    clip_norm=[None, 0.5],
)
def test_dense_layers_are_updated_after_each_pass(
    split: tuple[str, int], fc_batch: int, clip_norm: float | None
) -> None:
    scheme, workers = split
    strategy = Hybrid(workers=workers, scheme=scheme, fc_batch=fc_batch, dense_lr_factor=0.5)
    optimizer = Momentum(momentum=0.9, weight_decay=1e-3, clip_norm=clip_norm)
    with begun(strategy, workload_of(hybrid, optimizer, batch_size=EVEN_BATCH)) as trainer:
        start = {name: value for name, value in trainer.weights().items() if "velocity" not in name}
        history = trainer.train(range(STEPS))
        found = trainer.weights()
    oracle = Oracle(start, 0.5, clip_norm)
    source = Chosen(EVEN_BATCH)
    with opened(Single(), workload_of(hybrid, Sgd(), batch_size=fc_batch), source=source) as trainer:
        losses = [oracle.step(trainer, step, places_of(strategy)) for step in range(STEPS)]
    np.testing.assert_allclose([loss for loss, _ in history], losses, rtol=1e-10)
    for name, expected in oracle.weights.items():
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-10, err_msg=name)
        np.testing.assert_allclose(found[f"{name}/velocity"], oracle.velocity[name], rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("optimizer", [Sgd(), Adam()], ids=lambda each: each.name)
def test_several_updates_without_layers_below_equal_separate_steps(optimizer: Optimizer) -> None:
    """Four updates in a step equal four steps, each on a quarter of the batch, even if the optimizer counts steps."""
    found, _ = trained(Hybrid(workers=2, fc_batch=3), workload_of(dense, optimizer, batch_size=EVEN_BATCH), 3)
    source = Chosen(EVEN_BATCH)
    with begun(Single(), workload_of(dense, optimizer, batch_size=3), source=source) as trainer:
        for update in range(12):
            step, source.places = update // 4, range(3 * (update % 4), 3 * (update % 4) + 3)
            feeds = {"step": scalar(update, "int64"), "learning_rate": scalar(0.1 / (1 + step), "float64")}
            trainer.session.run("train", step=step, feeds=feeds)
        assert difference(found, trainer.weights()) <= 1e-10
