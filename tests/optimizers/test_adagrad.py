from __future__ import annotations

import numpy as np
import pytest

from runner.engine.kernel_table import load_kernels
from runner.optimizers import Adagrad
from runner.strategies.base import Strategy
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from tests.optimizers.support import RATES, START, Array, Trainer, assert_same_path, gradient_steps
from tests.strategies.networks import NETWORKS, task_of
from tests.strategies.training import expect_same_bits, trained


def dist_belief(decay: float) -> list[dict[str, Array]]:
    """w <- w - gamma g / sqrt(sum of g ** 2 so far)."""
    w, s, path = dict(START), {name: np.zeros_like(value) for name, value in START.items()}, []
    for g, gamma in zip(gradient_steps(), RATES, strict=True):
        for name in START:
            penalised = g[name] + (decay if name == "fc1/weights" else 0.0) * w[name]
            s[name] = s[name] + penalised**2
            w[name] = w[name] - gamma * penalised / np.sqrt(s[name])
        path.append(dict(w))
    return path


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_adagrad_is_dist_beliefs(decay: float) -> None:
    found = Trainer(Adagrad(weight_decay=decay)).run(gradient_steps(), RATES)
    assert_same_path(found, dist_belief(decay))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_moves_where_no_gradient_ever_was(dtype: str) -> None:
    still = {name: np.zeros_like(value) for name, value in START.items()}
    moved = {**still, "fc1/bias": np.array([0.0, 1.0, 0.0])}
    first, second = Trainer(Adagrad(), dtype).run([still, moved], [0.1, 0.1])
    for name, start in START.items():
        np.testing.assert_array_equal(first[name], start.astype(dtype))
    step = np.array([0.0, 0.1, 0.0], dtype)
    np.testing.assert_array_equal(second["fc1/bias"], START["fc1/bias"].astype(dtype) - step)


def test_a_gradient_whose_square_is_zero_moves_nothing() -> None:
    tiny = {name: np.full_like(value, 1e-30) for name, value in START.items()}
    (path,) = Trainer(Adagrad(), "float32").run([tiny], [1e30])
    np.testing.assert_array_equal(path["fc1/weights"], START["fc1/weights"].astype("float32"))


def test_a_gradient_that_is_not_a_number_is_seen() -> None:
    broken = {name: np.full_like(value, np.nan) for name, value in START.items()}
    (path,) = Trainer(Adagrad()).run([broken], [0.1])
    assert np.isnan(path["fc1/weights"]).all()


def test_the_slot_stands_beside_its_variable() -> None:
    slots = [v for v in Trainer(Adagrad()).variables if not v.trainable]
    assert [v.name for v in slots] == ["fc1/weights/squares", "fc1/bias/squares"]


@pytest.mark.parametrize("strategy", [SyncData(workers=2), SyncData(workers=2, combine="parameter_server", servers=2)])
def test_it_works_with_other_strategies(strategy: Strategy) -> None:
    registry = load_kernels()
    weights, _ = trained(strategy, task_of(NETWORKS["convolutional"], Adagrad(), batch_size=8), registry, 4)
    task = task_of(NETWORKS["convolutional"], Adagrad(), batch_size=8, microbatches=2)
    expected, _ = trained(Single(), task, registry, 4)
    expect_same_bits(weights, expected)
