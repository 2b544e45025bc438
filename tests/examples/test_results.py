"""The examples compute what their texts say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.data.pipeline import Pipeline
from runner.engine import ops
from runner.engine.graph import Graph
from runner.engine.kernel_table import load_kernels
from runner.kernels.registry import Registry
from runner.optimizers import Momentum, Sgd
from runner.plugin import install
from runner.strategies import STRATEGIES
from runner.strategies.base import shares
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from tests.optimizers.support import RATES, START, Trainer, assert_same_path, gradient_steps
from tests.oracles import assert_gradients, evaluate
from tests.plugin_tables import EXAMPLES, example, restored_tables
from tests.strategies.networks import NETWORKS, Examples, task_of
from tests.strategies.training import difference, expect_same_bits, opened, trained

Array = NDArray[Any]


@pytest.fixture
def swish() -> Iterator[None]:
    """The op of own_op, in the tables."""
    load_kernels()
    with restored_tables():
        install([str(EXAMPLES / "own_op" / "swish.py")])
        yield


@pytest.mark.usefixtures("swish")
def test_swish_and_its_gradients() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (3, 4), "float64", name="x")
    (y,) = graph.add("swish", [x])
    rng = np.random.default_rng(0)
    value = 3 * rng.standard_normal((3, 4))
    np.testing.assert_allclose(evaluate(graph, [y], {x: value})[0], value / (1 + np.exp(-value)), rtol=1e-14)
    assert_gradients(graph, [y], [x], {x: value}, rng, order=2)


@pytest.mark.usefixtures("swish")
def test_swish_overflows_nowhere() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (2,), "float32", name="x")
    (y,) = graph.add("swish", [x])
    assert evaluate(graph, [y], {x: np.array([-1e4, 1e4], "float32")})[0].tolist() == [0.0, 1e4]


def test_lion_takes_the_steps_of_its_paper() -> None:
    lion = example("own_optimizer/lion.py").optimizers["lion"](lr=0.1, weight_decay=0.01)
    gradients = gradient_steps()
    weights, averages = dict(START), {name: np.zeros_like(value) for name, value in START.items()}
    expected = []
    for step, rate in zip(gradients, RATES, strict=True):
        for name, g in step.items():
            direction = np.sign(0.9 * averages[name] + 0.1 * g)
            decay = 0.01 * weights[name] if name.endswith("weights") else 0.0
            weights[name] = weights[name] - rate * (direction + decay)
            averages[name] = 0.99 * averages[name] + 0.01 * g
        expected.append(dict(weights))
    assert_same_path(Trainer(lion).run(gradients, RATES), expected)


def test_bars_lie_and_stand() -> None:
    settings = example("own_dataset/bars.py").datasets["bars"](examples=40)
    data = settings.load()
    assert data.facts == settings.facts()
    rows, columns = (data.train.images.astype(float).mean(axis=axis)[:, 0].max(axis=1) for axis in (3, 2))
    np.testing.assert_array_equal(data.train.labels, (columns > rows).astype(int))
    batch = Pipeline(data, seed=0, batch_size=40, dtype="float64").read("train", 0, 0, 40)
    assert abs(batch["x"].mean()) < 0.1
    assert abs(batch["x"].std() - 1) < 0.1


@dataclass(frozen=True)
class OneShare:
    """The examples that worker ``k`` of two sees of each batch of 8, as a whole batch of their own."""

    k: int

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, Array]:
        begin, _ = shares(8, 2)[self.k] if split == "train" else (0, 0)
        return Examples(8).read(split, step, begin + lo, begin + hi)


def local_sgd(**settings: int):
    return example("own_strategy/local_sgd.py").strategies["local_sgd"](**settings)


@pytest.mark.parametrize("optimizer", [Sgd(weight_decay=0.1), Momentum()], ids=["sgd", "momentum"])
@pytest.mark.parametrize("network", ["dense", "batch_normalised", "dropped_out"])
def test_local_sgd_that_averages_every_step_is_synchronous(network: str, optimizer, registry: Registry) -> None:
    task = task_of(NETWORKS[network], optimizer, batch_size=8)
    ours, history = trained(local_sgd(workers=2, every=1), task, registry, 4)
    theirs, their_history = trained(SyncData(workers=2), task, registry, 4)
    assert difference(ours, theirs) < 1e-12
    np.testing.assert_allclose(history, their_history, rtol=1e-12)


def test_local_sgd_is_the_mean_of_networks_that_learn_alone(registry: Registry) -> None:
    ours, _ = trained(local_sgd(workers=2, every=3), task_of(NETWORKS["dense"], Momentum(), batch_size=8), registry, 3)
    alone = []
    for k in range(2):
        task = task_of(NETWORKS["dense"], Momentum(), batch_size=4)
        with opened(Single(), task, registry, source=OneShare(k)) as trainer:
            trainer.session.run("init")
            trainer.train(range(3))
            alone.append(trainer.weights())
    mean = {name: (alone[0][name] + alone[1][name]) / 2 for name in ours}
    assert difference(ours, mean) < 1e-12
    assert difference(alone[0], alone[1]) > 1e-3


def test_local_sgd_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(registry: Registry) -> None:
    task = task_of(NETWORKS["dense"], Momentum(), batch_size=8)
    with opened(local_sgd(every=2), task, registry) as whole:
        whole.session.run("init")
        whole.train(range(3))
        saved = whole.weights()  # averaged, though that was not due
        whole.train(range(3, 7))
        expected = whole.weights()
    with opened(local_sgd(every=2), task, registry) as rest:
        rest.session.run("restore", feeds=saved)
        rest.train(range(3, 7))
        expect_same_bits(rest.weights(), expected)


def test_local_sgd_sends_what_it_says(registry: Registry) -> None:
    task = task_of(NETWORKS["dense"], Momentum(), batch_size=9)
    strategy = local_sgd(workers=3, every=4)
    variables = sum(spec.nbytes for spec in strategy.build(task).variables.values())
    with opened(strategy, task, registry) as trainer:
        trainer.session.run("init")
        trainer.train(range(3))
        apart = trainer.session.sent_bytes()
        trainer.train([3])
        average = np.subtract(trainer.session.sent_bytes(), apart)
    metrics = 2 * 2 * 8  # loss and accuracy of the others, each step
    assert sum(apart) == 3 * metrics
    assert sum(average) == metrics + 2 * (3 - 1) * variables


def test_no_example_is_in_the_tables_of_the_package() -> None:
    assert "local_sgd" not in STRATEGIES
