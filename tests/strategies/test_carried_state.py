"""State that a network carries from step to step: every strategy trains an LSTM like ``single``, or refuses it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.errors import ConfigError
from runner.fields import BEGINS, Field
from runner.models import Lstm
from runner.optimizers import Lbfgs, Momentum
from runner.strategies import AsyncData, Hybrid, ModelParallel, Sandblaster, Single, Strategy, SyncData, Workload
from runner.tasks.language import Language
from tests.strategies.networks import Source
from tests.strategies.training import Placed, begun, difference, expect_like_single, expect_same_bits, outcome, rate_of

WORDS, STEPS, ROWS, TEST_ROWS = 11, 5, 7, 6
NAMES = tuple(f"w{number}" for number in range(WORDS))
FIELDS = {"x": Field((STEPS,), "int64", NAMES), "y": Field((STEPS,), "int64", NAMES), BEGINS: Field((), "int64")}
CLIPPED = Momentum(clip_norm=0.5)
STATES = {f"lstm{layer}/{state}" for layer in (1, 2) for state in ("output", "cell")}


class Texts(Source):
    """A source of random words; some rows begin again. In a test batch, some words do not count."""

    def draw(self, rng: np.random.Generator, size: int, step: int, test: bool) -> dict[str, NDArray[Any]]:
        x, y = rng.integers(0, WORDS, (2, size, STEPS))
        if test:
            y[1, 3:] = -1
        return {"x": x, "y": y, BEGINS: (rng.random(size) < 0.3).astype(np.int64) | (step == 0)}


TEXTS = Texts(ROWS, test_batch=TEST_ROWS, padding=1)


def workload_of(optimizer: Any = CLIPPED, microbatches: int = 1, loss: str = "softmax", **model: Any) -> Workload:
    network = Language(loss=loss, samples=6).network(Lstm(units=[3, 4], embedding=3, init_scale=0.5, **model), FIELDS)
    return Workload(network, optimizer, FIELDS, "float64", 7, ROWS, TEST_ROWS, microbatches)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "ring": (SyncData(workers=3, combine="ring_all_reduce"), {}),
    "reduce": (SyncData(workers=2, combine="sharded_reduce"), {"loss": "sampled_softmax"}),
    "servers": (SyncData(workers=2, combine="parameter_server", servers=2), {"dropout": 0.4}),
    "model": (Placed(ModelParallel(workers=3)), {"chunks": 3}),
    "pipeline": (Placed(ModelParallel(workers=2, concurrent_steps=3)), {"dropout": 0.4}),
    "downpour": (AsyncData(workers=1, loop="direct"), {}),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_strategy_carries_state_like_single(name: str) -> None:
    strategy, settings = CASES[name]
    workload = workload_of(Momentum() if name == "downpour" else CLIPPED, **settings)
    # The second evaluation batch continues the first.
    found = expect_like_single(strategy, workload, TEXTS, batches=2)
    assert found.weights.keys() >= STATES
    assert all(np.abs(found.weights[name]).min() > 0 for name in STATES)
    assert found.scores[0].keys() == {"loss", "counted", "mask"}


def test_workers_equal_microbatches_bit_for_bit() -> None:
    found = outcome(SyncData(workers=3, combine="sharded_reduce"), workload_of(), source=TEXTS)
    expected = outcome(Single(), workload_of(microbatches=3), source=TEXTS)
    expect_same_bits(found.weights, expected.weights)
    assert found.losses == expected.losses


@pytest.mark.parametrize("resumed", [Single(), SyncData(workers=2), SyncData(workers=3, combine="parameter_server")])
def test_state_is_restored_with_the_weights_under_any_strategy(resumed: Strategy) -> None:
    begun_by = SyncData(workers=3, combine="ring_all_reduce")
    saved = outcome(begun_by, workload_of(), range(2), source=TEXTS).weights
    found = outcome(resumed, workload_of(), range(2, 4), saved, source=TEXTS)
    expected = outcome(begun_by, workload_of(), range(4), source=TEXTS)
    assert difference({name: found.weights[name] for name in expected.weights}, expected.weights) < 1e-12
    np.testing.assert_allclose(found.losses, expected.losses[2:], rtol=1e-12)


def test_evaluations_do_not_change_the_state_of_training() -> None:
    with begun(Single(), workload_of(), source=TEXTS) as trainer:
        trainer.step_driver.update(0, rate_of(0, "float64"))
        before, first = trainer.weights(), [trainer.evaluate(batch) for batch in range(2)]
        expect_same_bits(trainer.weights(), before)
        for batch, expected in enumerate(first):
            expect_same_bits(trainer.evaluate(batch), expected)


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
    with pytest.raises(ConfigError, match=r"layer 'lstm1' \(lstm\) carries state from step to step, which L-BFGS"):
        strategy.build(replace(workload_of(), optimizer=optimizer))
