from __future__ import annotations

import numpy as np
import pytest

from runner.errors import ConfigError
from runner.optimizers import HeavyBall, Momentum
from tests.optimizers.support import RATES, START, Array, Trainer, assert_same_path, gradient_steps

ZEROS = {name: np.zeros_like(value) for name, value in START.items()}


def krizhevsky(mu: float, decay: float, bias_factor: float = 1.0) -> list[dict[str, Array]]:
    """v <- mu v - eps decay w - eps g; w <- w + v."""
    w, v, path = dict(START), dict(ZEROS), []
    for g, eps in zip(gradient_steps(), RATES, strict=True):
        for name in START:
            omega = decay if name == "fc1/weights" else 0.0
            rate = eps * (bias_factor if name == "fc1/bias" else 1.0)
            v[name] = mu * v[name] - rate * omega * w[name] - rate * g[name]
            w[name] = w[name] + v[name]
        path.append(dict(w))
    return path


def inception_guide(beta: float, decay: float) -> list[dict[str, Array]]:
    """z <- beta z + (g + decay w); w <- w - alpha z. The form of torch.optim.SGD(momentum=beta) too."""
    w, z, path = dict(START), dict(ZEROS), []
    for g, alpha in zip(gradient_steps(), RATES, strict=True):
        for name in START:
            omega = decay if name == "fc1/weights" else 0.0
            z[name] = beta * z[name] + g[name] + omega * w[name]
            w[name] = w[name] - alpha * z[name]
        path.append(dict(w))
    return path


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_momentum_is_krizhevskys(decay: float) -> None:
    found = Trainer(Momentum(momentum=0.8, weight_decay=decay)).run(gradient_steps(), RATES)
    assert_same_path(found, krizhevsky(0.8, decay))


def test_biases_may_learn_faster() -> None:
    found = Trainer(Momentum(weight_decay=0.2, bias_lr_factor=2.0)).run(gradient_steps(), RATES)
    assert_same_path(found, krizhevsky(0.9, 0.2, bias_factor=2.0))


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_heavy_ball_is_the_guides(decay: float) -> None:
    found = Trainer(HeavyBall(momentum=0.8, weight_decay=decay)).run(gradient_steps(), RATES)
    assert_same_path(found, inception_guide(0.8, decay))


def test_the_two_agree_at_a_constant_rate() -> None:
    steps, rates = gradient_steps(), (0.05,) * len(RATES)
    left = Trainer(Momentum(weight_decay=0.1)).run(steps, rates)
    assert_same_path(left, Trainer(HeavyBall(weight_decay=0.1)).run(steps, rates))


def test_the_two_differ_after_a_change_of_rate() -> None:
    # One gradient of 1, then none: with momentum 1/2, a rate cut from 1 to 0.1 leaves the remembered step at
    # -1/2 in one form and cuts it to -0.05 in the other.
    ones = {name: np.ones_like(value) for name, value in START.items()}
    moved = {}
    for optimizer in (Momentum(momentum=0.5), HeavyBall(momentum=0.5)):
        first, second = Trainer(optimizer).run([ones, ZEROS], [1.0, 0.1])
        moved[optimizer.name] = second["fc1/bias"] - first["fc1/bias"]
    np.testing.assert_allclose(moved["momentum"], -0.5, rtol=1e-12)
    np.testing.assert_allclose(moved["heavy_ball"], -0.05, rtol=1e-12)


def test_slots_stand_beside_their_variable() -> None:
    for optimizer, slot in ((Momentum(), "velocity"), (HeavyBall(), "accumulator")):
        variables = list(Trainer(optimizer).variables)
        slots = [v for v in variables if not v.trainable]
        assert [v.name for v in slots] == [f"fc1/weights/{slot}", f"fc1/bias/{slot}"]
        assert [v.spec for v in slots] == [v.spec for v in variables if v.trainable]
        assert all(v.layer is not None and v.layer.name == "fc1" and not v.decayed for v in slots)


@pytest.mark.parametrize("optimizer", [Momentum, HeavyBall])
@pytest.mark.parametrize("momentum", [-0.1, 1.0])
def test_impossible_momentum(optimizer: type[Momentum] | type[HeavyBall], momentum: float) -> None:
    with pytest.raises(ConfigError, match=rf"^optimizer.momentum={momentum}: expected a number from 0 to below 1$"):
        optimizer(momentum=momentum)


def test_impossible_bias_factor() -> None:
    with pytest.raises(ConfigError, match=r"^optimizer.bias_lr_factor=0.0: expected a finite number above 0$"):
        Momentum(bias_lr_factor=0.0)
