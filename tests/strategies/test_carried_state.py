"""State that a network carries from step to step: every strategy trains an LSTM like ``single``, or refuses it."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.engine.run.session import scalar
from runner.errors import ConfigError
from runner.fields import BEGINS, Field
from runner.kernels.registry import Registry
from runner.models import Lstm
from runner.optimizers.lbfgs import Lbfgs
from runner.optimizers.sgd import Momentum
from runner.strategies.async_data import AsyncData
from runner.strategies.base import Strategy, Workload
from runner.strategies.hybrid import Hybrid
from runner.strategies.model import ModelParallel
from runner.strategies.sandblaster import Sandblaster
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from runner.tasks.language import Language
from tests.strategies.training import Placed, Trainer, begun, difference, expect_same_bits, rate_of

WORDS, STEPS, ROWS, TEST_ROWS = 11, 5, 7, 6
NAMES = tuple(f"w{number}" for number in range(WORDS))
FIELDS = {
    "x": Field((STEPS,), "int64", NAMES),
    "y": Field((STEPS,), "int64", NAMES),
    BEGINS: Field((), "int64"),
}
CLIPPED = Momentum(clip_norm=0.5)
STATES = {f"lstm{layer}/{state}" for layer in (1, 2) for state in ("output", "cell")}


@dataclass(frozen=True)
class Texts:
    """A source of random words; some rows begin anew. In a test batch, some words and the last row do not count."""

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, NDArray[Any]]:
        """Return rows lo..hi-1 of the batch of a step."""
        test = split == "test"
        size, rng = TEST_ROWS if test else ROWS, np.random.default_rng([step, test])
        x, y = rng.integers(0, WORDS, (2, size, STEPS))
        if test:
            y[1, 3:] = -1
        batch = {
            "x": x,
            "y": y,
            BEGINS: (rng.random(size) < 0.3).astype(np.int64) | (step == 0),
            "index": step * size + np.arange(size),
            "mask": (np.arange(size) < size - test).astype(np.float64),
        }
        return {name: values[lo:hi] for name, values in batch.items()}


def workload_of(optimizer: Any = CLIPPED, microbatches: int = 1, loss: str = "softmax", **model: Any) -> Workload:
    network = Language(loss=loss, samples=6).network(Lstm(units=[3, 4], embedding=3, init_scale=0.5, **model), FIELDS)
    return Workload(network, optimizer, FIELDS, "float64", 7, ROWS, TEST_ROWS, microbatches)


def scores(trainer: Trainer) -> list[dict[str, Any]]:
    """Return the results of two evaluation batches, the second of which continues the first."""
    trainer.step_driver.synchronize()
    found = [trainer.session.run("eval", step=n, feeds={"step": scalar(n, "int64")}) for n in (0, 1)]
    return [{name: value.copy() for name, value in each.items()} for each in found]


def run_of(strategy: Any, workload: Workload, registry: Registry, saved: Any = None, steps: range = range(3)) -> Any:
    """Return the variables after some steps, the loss of each step, and the scores of two evaluation batches."""
    with begun(strategy, workload, registry, saved, source=Texts()) as trainer:
        losses = [float(trainer.step_driver.update(step, rate_of(step, "float64"))["loss"]) for step in steps]
        weights = {name: value.copy() for name, value in trainer.weights().items()}
        return weights, losses, scores(trainer)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "ring": (SyncData(workers=3, combine="ring_all_reduce"), {}),
    "reduce": (SyncData(workers=2, combine="sharded_reduce"), {"loss": "sampled_softmax"}),
    "servers": (SyncData(workers=2, combine="parameter_server", servers=2), {"dropout": 0.4}),
    "model": (Placed(ModelParallel(workers=3)), {"chunks": 3}),
    "pipeline": (Placed(ModelParallel(workers=2, concurrent_steps=3)), {"dropout": 0.4}),
    "downpour": (AsyncData(workers=1, loop="direct"), {}),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_strategy_carries_state_like_single(name: str, registry: Registry) -> None:
    strategy, settings = CASES[name]
    workload = workload_of(Momentum() if name == "downpour" else CLIPPED, **settings)
    weights, losses, found = run_of(strategy, workload, registry)
    expected_weights, expected_losses, expected = run_of(Single(), workload, registry)
    assert expected_weights.keys() >= STATES
    assert all(np.abs(expected_weights[name]).min() > 0 for name in STATES)
    assert difference(weights, {name: expected_weights[name] for name in weights}) < 1e-12
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-12)
    for mine, its in zip(found, expected, strict=True):
        assert mine.keys() == its.keys() == {"loss", "counted", "mask"}
        for key in its:
            np.testing.assert_allclose(mine[key], its[key], rtol=1e-11, atol=1e-13, err_msg=key)


def test_workers_equal_microbatches_bit_for_bit(registry: Registry) -> None:
    weights, losses, _ = run_of(SyncData(workers=3, combine="sharded_reduce"), workload_of(), registry)
    expected_weights, expected_losses, _ = run_of(Single(), workload_of(microbatches=3), registry)
    expect_same_bits(weights, expected_weights)
    assert losses == expected_losses


@pytest.mark.parametrize("resumed", [Single(), SyncData(workers=2), SyncData(workers=3, combine="parameter_server")])
def test_state_is_restored_with_the_weights_under_any_strategy(resumed: Strategy, registry: Registry) -> None:
    begun_by = SyncData(workers=3, combine="ring_all_reduce")
    saved, _, _ = run_of(begun_by, workload_of(), registry, steps=range(2))
    weights, losses, _ = run_of(resumed, workload_of(), registry, saved, range(2, 4))
    expected, expected_losses, _ = run_of(begun_by, workload_of(), registry, steps=range(4))
    assert difference({name: weights[name] for name in expected}, expected) < 1e-12
    np.testing.assert_allclose(losses, expected_losses[2:], rtol=1e-12)


def test_evaluations_do_not_change_the_state_of_training(registry: Registry) -> None:
    with begun(Single(), workload_of(), registry, source=Texts()) as trainer:
        trainer.step_driver.update(0, rate_of(0, "float64"))
        before = {name: value.copy() for name, value in trainer.weights().items()}
        first = scores(trainer)
        expect_same_bits(trainer.weights(), before)
        for mine, its in zip(scores(trainer), first, strict=True):
            expect_same_bits(mine, its)


@pytest.mark.parametrize(
    ("strategy", "optimizer"),
    [
        (Hybrid(workers=2, scheme="a"), Momentum()),
        (Single(), Lbfgs(history=3)),
        (Sandblaster(workers=2, portions_per_worker=2), Lbfgs(history=3)),
        (SyncData(workers=2, combine="parameter_server", backup_workers=1), Momentum()),
        (ModelParallel(workers=2, shard={"softmax": "column"}), Momentum()),
    ],
)
def test_a_strategy_that_cannot_carry_state_refuses_the_network(strategy: Strategy, optimizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"layer 'lstm1' \(lstm\) carries its state from step to step, which L-BFGS"):
        strategy.build(replace(workload_of(), optimizer=optimizer))
