"""``pipeline: stale``: ordered updates by gradients at the weights of the start of the step."""

import numpy as np
import pytest

from runner.engine.compile.program import Program
from runner.engine.graph.device import local_cluster, worker_device
from runner.engine.run.local_session import LocalSession
from runner.kernels.registry import Registry
from runner.optimizers.adam import Adam
from runner.optimizers.base import Optimizer
from runner.optimizers.sgd import Momentum, Sgd
from runner.strategies.base import Task
from runner.strategies.microbatches import in_stale_parts
from runner.strategies.model import ModelParallel
from runner.strategies.replica import shares
from runner.strategies.single import Single
from tests.strategies.networks import NETWORKS, Examples, dense, task_of
from tests.strategies.placing import Placed
from tests.strategies.test_single import loss_and_gradients
from tests.strategies.training import Array, Weights, difference, expect_same_bits, opened, trained

BATCH = 13


def stale(workers: int, parts: int) -> Placed:
    return Placed(ModelParallel(workers=workers, concurrent_steps=parts, pipeline="stale"))


def momentum_by_hand(weights: Weights, batch: int, parts: int, step: int, momentum: float) -> Weights:
    """One step of the dense network: each part's gradient at the start, applied in order."""
    rate = 0.1 / (1 + step)
    examples = Examples(batch).read("train", step, 0, batch)
    now = dict(weights)
    for lo, hi in shares(batch, parts):
        _, _, gradients = loss_and_gradients(weights, examples["x"][lo:hi], examples["y"][lo:hi])
        for name, gradient in gradients.items():
            now[f"{name}/velocity"] = momentum * now[f"{name}/velocity"] - rate * gradient
            now[name] = now[name] + now[f"{name}/velocity"]
    return now


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("parts", [2, 3])
def test_gradients_of_the_start_are_applied_in_order(workers: int, parts: int, registry: Registry) -> None:
    task = task_of(dense, Momentum(), batch_size=BATCH)
    with opened(stale(workers, parts), task, registry) as trainer:
        trainer.session.run("init")
        for step in range(4):
            expected = momentum_by_hand(trainer.weights(), BATCH, parts, step, momentum=0.9)
            [(loss, _)] = trainer.train([step])
            assert np.isfinite(loss)
            assert difference(trainer.weights(), expected) <= 1e-12


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_the_first_step_has_the_loss_of_the_batch_at_its_start(network: str, registry: Registry) -> None:
    task = task_of(NETWORKS[network], Sgd(), batch_size=BATCH)
    microbatches = task_of(NETWORKS[network], Sgd(), batch_size=BATCH, microbatches=3)
    (_, [found]), (_, [expected]) = (
        trained(stale(2, 3), task, registry, 1),
        trained(Single(), microbatches, registry, 1),
    )
    assert found == expected


def adam() -> Optimizer:
    """An optimizer that uses the number of the update, with active clipping."""
    return Adam(lr=0.01, weight_decay=1e-3, clip_norm=0.5)


class OneStalePart:
    """Settings that the configuration refuses."""

    name = "one stale part"
    workers = 1

    def build(self, task: Task) -> Program:
        """On one device."""
        return in_stale_parts(task, worker_device(0))


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_a_single_part_is_not_stale(network: str, registry: Registry) -> None:
    task = task_of(NETWORKS[network], adam(), batch_size=BATCH)
    (found, history), (expected, reference) = (trained(s, task, registry, 4) for s in (OneStalePart(), Single()))
    assert difference(found, expected) <= 1e-12
    np.testing.assert_allclose(history, reference, rtol=1e-12)


def test_updates_are_numbered_through_and_averages_advance_part_by_part(registry: Registry) -> None:
    """Oracle: ``single`` on halves, reset to the start for each gradient; slots and averages continue."""
    optimizer = Adam(lr=0.01, clip_norm=0.5)
    task, half = (task_of(NETWORKS["batch_normalised"], optimizer, batch_size=size) for size in (12, 6))
    with opened(stale(2, 2), task, registry) as trainer:
        trainer.session.run("init")
        trainer.train([0])
        start = dict(trainer.weights())
        trainer.train([1])
        found = trainer.weights()
    session = LocalSession(Single().build(half), local_cluster(1), registry, HalvesOfStepOne())
    now = dict(start)
    for part in range(2):
        at_start = {name: value if _goes_on(name) else start[name] for name, value in now.items()}
        session.run("restore", feeds=at_start)
        session.run("train", step=part, feeds={"step": np.asarray(2 + part), "learning_rate": np.asarray(0.1 / 2)})
        for name, value in session.run("save").items():
            now[name] = value if _goes_on(name) else now[name] + (value - start[name])
    assert difference(found, now) <= 1e-12


def _goes_on(name: str) -> bool:
    """Return whether a variable continues from the part before: slots and moving averages."""
    return name.endswith(("_moment", "moving_mean", "moving_variance"))


class HalvesOfStepOne:
    """The two halves of the batch of 12 of step 1, as the batches of steps 0 and 1."""

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, Array]:
        """Cut the batch."""
        whole = Examples(12).read(split, 1, 0, 12)
        return {field: values[6 * step + lo : 6 * step + hi] for field, values in whole.items()}


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_bits_do_not_depend_on_where_layers_are(network: str, registry: Registry) -> None:
    task = task_of(NETWORKS[network], adam(), batch_size=BATCH)
    found, expected = (trained(stale(workers, 3), task, registry, 4) for workers in (3, 1))
    expect_same_bits(found[0], expected[0])
    assert found[1] == expected[1]


def test_stale_gradients_end_with_other_weights_than_summed_ones(registry: Registry) -> None:
    task = task_of(dense, Sgd(), batch_size=12)
    summed = Placed(ModelParallel(concurrent_steps=2))
    assert difference(*(trained(s, task, registry, 3)[0] for s in (stale(2, 2), summed))) > 1e-4
