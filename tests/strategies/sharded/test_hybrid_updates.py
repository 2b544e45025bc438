"""Dense layers with several updates in a step and a separate rate, against the algorithm in NumPy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.engine.run.session import scalar
from runner.kernels.registry import Registry
from runner.optimizers.adam import Adam
from runner.optimizers.base import Optimizer
from runner.optimizers.sgd import Momentum, Sgd
from runner.strategies.hybrid import Hybrid
from runner.strategies.replica import shares
from runner.strategies.sharded.network_parts import dense_passes
from runner.strategies.single import Single
from tests.all_pairs import all_pairs
from tests.strategies.networks import Examples, dense, hybrid, task_of
from tests.strategies.training import Trainer, Weights, begun, difference, opened, trained

BATCH = 12
STEPS = 5
MOMENTUM, DECAY = 0.9, 1e-3

Array = NDArray[Any]
Gradient = Mapping[str, Array]


class Chosen:
    """The source of some examples of a batch at a time, by their places in it."""

    def __init__(self) -> None:
        self.places: Sequence[int] = ()

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, Array]:
        whole = Examples(BATCH).read(split, step, 0, BATCH)
        return {field: values[self.places][lo:hi] for field, values in whole.items()}


class Gradients:
    """Loss and gradient of the mean over some examples, from one step of plain descent under ``single``."""

    def __init__(self, trainer: Trainer, source: Chosen) -> None:
        self._session = trainer.session
        self._source = source

    def __call__(self, weights: Weights, step: int, places: Sequence[int]) -> tuple[float, Gradient]:
        self._source.places = places
        self._session.run("restore", feeds=dict(weights))
        feeds = {"step": scalar(step, "int64"), "learning_rate": scalar(1.0, "float64")}
        loss = self._session.run("train", step=step, feeds=feeds)["loss"]
        moved = self._session.run("save")
        return float(loss), {name: weights[name] - moved[name] for name in weights}


def places_of(strategy: Hybrid) -> list[list[int]]:
    """Places in the batch of the examples of each pass."""
    starts = [lo for lo, _ in shares(BATCH, strategy.workers)]
    passes = dense_passes(strategy.scheme, BATCH, strategy.workers, strategy.fc_batch)
    return [
        [start + i for start, (lo, hi) in zip(starts, examples, strict=True) for i in range(lo, hi)]
        for examples in passes
    ]


def shortened(gradient: Gradient, limit: float | None) -> Gradient:
    norm = np.sqrt(sum(float((each**2).sum()) for each in gradient.values()))
    factor = 1.0 if limit is None else min(1.0, limit / norm)
    return {name: factor * each for name, each in gradient.items()}


class Oracle:
    """Krizhevsky 2014, section 4, with momentum: dense layers after each pass, the others once."""

    def __init__(self, weights: Weights, rate_factor: float, limit: float | None) -> None:
        self.weights = dict(weights)
        self.velocity = {name: np.zeros_like(value) for name, value in weights.items()}
        self._rate_factor = rate_factor
        self._limit = limit

    def step(self, gradients: Gradients, step: int, passes: Sequence[Sequence[int]]) -> float:
        rate = 0.1 / (1 + step)
        losses, below = [], []
        for places in passes:
            loss, gradient = gradients(self.weights, step, places)
            losses.append(loss)
            below.append({name: each for name, each in gradient.items() if name.startswith("conv")})
            dense = {name: each for name, each in gradient.items() if name.startswith("fc")}
            self._update(shortened(dense, self._limit), rate * self._rate_factor)
        mean = {name: np.mean([each[name] for each in below], axis=0) for name in below[0]}
        self._update(shortened(mean, self._limit), rate)
        return float(np.mean(losses))

    def _update(self, gradient: Gradient, rate: float) -> None:
        for name, each in gradient.items():
            decay = DECAY * self.weights[name] if name.endswith("weights") else 0.0
            self.velocity[name] = MOMENTUM * self.velocity[name] - rate * (each + decay)
            self.weights[name] = self.weights[name] + self.velocity[name]


@all_pairs(split=[("b", 1), ("b", 2), ("b", 3), ("c", 2), ("c", 4)], fc_batch=[2, 3, 4, 6], clip_norm=[None, 0.5])
def test_dense_layers_are_updated_after_each_pass(
    split: tuple[str, int], fc_batch: int, clip_norm: float | None, registry: Registry
) -> None:
    scheme, workers = split
    strategy = Hybrid(workers=workers, scheme=scheme, fc_batch=fc_batch, dense_lr_factor=0.5)
    optimizer = Momentum(momentum=MOMENTUM, weight_decay=DECAY, clip_norm=clip_norm)
    with begun(strategy, task_of(hybrid, optimizer, batch_size=BATCH), registry) as trainer:
        start = {name: value for name, value in trainer.weights().items() if "velocity" not in name}
        history = trainer.train(range(STEPS))
        found = trainer.weights()
    oracle = Oracle(start, 0.5, clip_norm)
    source = Chosen()
    with opened(Single(), task_of(hybrid, Sgd(), batch_size=fc_batch), registry, source=source) as trainer:
        gradients = Gradients(trainer, source)
        losses = [oracle.step(gradients, step, places_of(strategy)) for step in range(STEPS)]
    np.testing.assert_allclose([loss for loss, _ in history], losses, rtol=1e-10)
    for name, expected in oracle.weights.items():
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-10, err_msg=name)
        np.testing.assert_allclose(found[f"{name}/velocity"], oracle.velocity[name], rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("scheme", ["b", "c"])
def test_fast_kernels_agree_up_to_rounding(scheme: str, registry: Registry) -> None:
    strategy = Hybrid(workers=3, scheme=scheme, fc_batch=4)
    runs = [
        trained(strategy, task_of(hybrid, Momentum(), batch_size=BATCH, dtype=dtype), registry, STEPS)[0]
        for dtype in ("float32", "float64")
    ]
    assert difference(*runs) <= 1e-5


def test_fc_batch_of_the_batch_is_one_update(registry: Registry) -> None:
    task = task_of(hybrid, Momentum(), batch_size=BATCH)
    runs = [trained(Hybrid(workers=3, fc_batch=size), task, registry, STEPS)[0] for size in (BATCH, None)]
    assert difference(*runs) == 0.0


@pytest.mark.parametrize("optimizer", [Sgd(), Adam()], ids=lambda each: each.name)
def test_without_layers_below_small_updates_are_separate_steps(optimizer: Optimizer, registry: Registry) -> None:
    """Also for an optimizer that counts: four updates in a step are those of four steps of a quarter of the batch."""
    found, _ = trained(Hybrid(workers=2, fc_batch=3), task_of(dense, optimizer, batch_size=BATCH), registry, 3)
    source = Chosen()
    with begun(Single(), task_of(dense, optimizer, batch_size=3), registry, source=source) as trainer:
        for update in range(12):
            step, source.places = update // 4, range(3 * (update % 4), 3 * (update % 4) + 3)
            feeds = {"step": scalar(update, "int64"), "learning_rate": scalar(0.1 / (1 + step), "float64")}
            trainer.session.run("train", step=step, feeds=feeds)
        assert difference(found, trainer.weights()) <= 1e-10


def test_dense_lr_factor_changes_dense_layers_only(registry: Registry) -> None:
    task = task_of(hybrid, Sgd(), batch_size=BATCH)
    start, usual, slow = (
        trained(Hybrid(workers=2, dense_lr_factor=factor), task, registry, steps)[0]
        for factor, steps in ((1.0, 0), (1.0, 1), (0.25, 1))
    )
    for name in start:
        factor = 0.25 if name.startswith("fc") else 1.0
        np.testing.assert_allclose(slow[name] - start[name], factor * (usual[name] - start[name]), atol=1e-15)
