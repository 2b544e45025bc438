"""``optimizer=lbfgs`` under ``single``: the iterations of the algorithm on the objective of each batch."""

from functools import partial

import numpy as np
import pytest

from runner.errors import ConfigError
from runner.kernels.registry import Registry
from runner.optimizers.lbfgs import History, Lbfgs, X, iterate
from runner.strategies.base import Task
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from tests.optimizers.minimising import NumpyMachine, Vector
from tests.strategies.iterating import iterated
from tests.strategies.networks import NETWORKS, Examples, dense, task_of
from tests.strategies.test_base import loss_and_gradients
from tests.strategies.training import Weights, difference, expect_same_bits, trained

BATCH = 23
DECAY = 0.01


def task_for(network: str = "dense", microbatches: int = 1, dtype: str = "float64", decay: float = DECAY) -> Task:
    optimizer = Lbfgs(history=3, clip_norm=1.0, weight_decay=decay)
    return task_of(NETWORKS[network], optimizer, batch_size=BATCH, microbatches=microbatches, dtype=dtype)


def vector_of(weights: Weights, names: list[str]) -> Vector:
    return np.concatenate([weights[name].ravel() for name in names])


def test_it_makes_the_iterations_of_the_algorithm_by_hand(registry: Registry) -> None:
    initial, _ = trained(Single(), task_for(), registry, 0)
    names = [name for name in initial if name.count("/") == 1 and not name.startswith("lbfgs")]
    edges = np.cumsum([initial[name].size for name in names])[:-1]

    def objective(step: int, x: Vector) -> tuple[float, Vector]:
        parts = np.split(x, edges)
        weights = {name: part.reshape(initial[name].shape) for name, part in zip(names, parts, strict=True)}
        batch = Examples(BATCH).read("train", step, 0, BATCH)
        loss, _, gradients = loss_and_gradients(weights, batch["x"], batch["y"])
        for name in names:
            if name.endswith("weights"):
                loss += 0.5 * DECAY * float((weights[name] ** 2).sum())
                gradients[name] = gradients[name] + DECAY * weights[name]
        return loss, vector_of(gradients, names)

    machine, history = NumpyMachine(partial(objective, 0), vector_of(initial, names)), History(3)
    expected = []
    for step in range(8):
        machine.objective = partial(objective, step)
        expected.append(iterate(machine, history, longest=1.0, most=20).objective)
    found = iterated(Single(), task_for(), registry, range(8))
    np.testing.assert_allclose([each[2] for each in found.told], expected, rtol=1e-9)
    np.testing.assert_allclose(vector_of(found.weights, names), machine.vectors[X], atol=1e-8)
    assert int(found.weights["lbfgs/pairs"]) == history.pairs == 8
    np.testing.assert_allclose(found.weights["lbfgs/products"], [history.curvatures, history.squares], rtol=1e-6)


@pytest.mark.parametrize("network", ["dense", "convolutional", "dropped_out"])
def test_microbatches_change_rounding_only(network: str, registry: Registry) -> None:
    whole, cut = (iterated(Single(), task_for(network, parts), registry, range(5)) for parts in (1, 4))
    np.testing.assert_allclose(whole.told, cut.told, rtol=1e-8)
    assert 0 < difference(whole.weights, cut.weights) <= 1e-6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_precisions_descend_too(dtype: str, registry: Registry) -> None:
    found = iterated(Single(), task_for(dtype=dtype), registry, [0] * 12)
    objectives = [each[2] for each in found.told]
    assert objectives == sorted(objectives, reverse=True)
    assert objectives[-1] < 0.5 * objectives[0]
    assert {value.dtype.name for value in found.weights.values()} == {"float32", "float64", "int64"}


def test_on_one_batch_it_reaches_a_minimum(registry: Registry) -> None:
    found = iterated(Single(), task_for(decay=0.0), registry, [0] * 40)
    assert found.told[-1][0] < 0.1 * found.told[0][0]
    assert found.told[-1][1] > 0.9


def test_a_run_continues_from_its_variables(registry: Registry) -> None:
    undisturbed = iterated(Single(), task_for("dropped_out"), registry, range(7))
    begun = iterated(Single(), task_for("dropped_out"), registry, range(4))
    continued = iterated(Single(), task_for("dropped_out"), registry, range(4, 7), saved=begun.weights)
    expect_same_bits(continued.weights, undisturbed.weights)
    assert begun.told + continued.told == undisturbed.told


def test_moving_averages_are_refused() -> None:
    expected = (
        "optimizer=lbfgs: the network has moving averages such as 'norm1/moving_mean', which would advance at every "
        "point of a line search; use a network without batch normalisation, or another optimizer"
    )
    with pytest.raises(ConfigError, match=f"^{expected}$"):
        Single().build(task_for("batch_normalised"))


def test_other_strategies_refuse_it() -> None:
    with pytest.raises(ConfigError, match="optimizer=lbfgs: its step needs more than one gradient"):
        SyncData().build(task_of(dense, Lbfgs(), batch_size=8))
