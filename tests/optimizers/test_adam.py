from __future__ import annotations

import math

import numpy as np
import pytest

from runner.errors import ConfigError
from runner.optimizers import Adam, AdamW
from tests.optimizers.support import RATES, START, Array, Trainer, assert_same_path, gradient_steps

B1, B2, EPSILON = 0.8, 0.95, 1e-6


def by_numpy(l2: float = 0.0, decoupled: float = 0.0, b1: float = B1, b2: float = B2) -> list[dict[str, Array]]:
    """Algorithm 1 of Kingma and Ba; ``decoupled`` is torch.optim.AdamW's: w <- w - lr * decay * w first."""
    w, path = dict(START), []
    m = {name: np.zeros_like(value) for name, value in START.items()}
    v = {name: np.zeros_like(value) for name, value in START.items()}
    for t, (gradients, lr) in enumerate(zip(gradient_steps(), RATES, strict=True), start=1):
        for name in START:
            decays = name == "fc1/weights"
            g = gradients[name] + (l2 * w[name] if decays else 0.0)
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g**2
            m_hat = m[name] / (1 - b1**t)
            v_hat = v[name] / (1 - b2**t)
            shrunk = w[name] * (1 - lr * decoupled) if decays else w[name]
            w[name] = shrunk - lr * m_hat / (np.sqrt(v_hat) + EPSILON)
        path.append(dict(w))
    return path


@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_adam_follows_algorithm_1(l2: float) -> None:
    optimizer = Adam(beta1=B1, beta2=B2, epsilon=EPSILON, weight_decay=l2)
    assert_same_path(Trainer(optimizer).run(gradient_steps(), RATES), by_numpy(l2=l2))


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adamw_decays_apart_from_the_moments(decay: float) -> None:
    optimizer = AdamW(beta1=B1, beta2=B2, epsilon=EPSILON, weight_decay=decay)
    assert_same_path(Trainer(optimizer).run(gradient_steps(), RATES), by_numpy(decoupled=decay))


def test_betas_of_zero() -> None:
    optimizer = Adam(beta1=0.0, beta2=0.0, epsilon=EPSILON)
    assert_same_path(Trainer(optimizer).run(gradient_steps(), RATES), by_numpy(b1=0.0, b2=0.0))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_first_step_is_the_learning_rate_whatever_the_gradient(dtype: str) -> None:
    # At t = 1 the corrections undo (1 - beta) exactly, so m_hat = g and v_hat = g * g.
    gradients = {name: np.full_like(value, 1e-3) for name, value in START.items()}
    (after,) = Trainer(Adam(epsilon=1e-12), dtype=dtype).run([gradients], [0.25])
    precision = 1e-6 if dtype == "float32" else 1e-8
    for name, start in START.items():
        np.testing.assert_allclose(start - after[name], 0.25, rtol=precision)


def test_corrections_keep_their_digits_in_float32() -> None:
    trainer = Trainer(Adam(beta2=0.999), dtype="float32")
    steady = {name: np.ones_like(value) for name, value in START.items()}
    path = trainer.run([steady] * 20, [1.0] * 20)
    # A constant gradient of 1 moves by exactly 1 per step if both corrections are exact.
    np.testing.assert_allclose(START["fc1/bias"] - path[-1]["fc1/bias"], 20.0, rtol=2e-6)


def test_corrections_are_added_once_for_all_variables() -> None:
    assert [node.op for node in Trainer(Adam()).graph].count("exp") == 2


def test_slots_stand_beside_their_variable() -> None:
    slots = [v.name for v in Trainer(AdamW()).variables if not v.trainable]
    assert slots == [f"{name}/{moment}_moment" for name in START for moment in ("first", "second")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta1": 1.0}, "optimizer.beta1=1.0: expected a number from 0 to below 1"),
        ({"beta2": -0.5}, "optimizer.beta2=-0.5: expected a number from 0 to below 1"),
        ({"epsilon": 0.0}, "optimizer.epsilon=0.0: expected a finite number above 0"),
        ({"lr": math.nan}, "optimizer.lr=nan: expected a finite number above 0"),
    ],
)
@pytest.mark.parametrize("optimizer", [Adam, AdamW])
def test_impossible_settings(optimizer: type[Adam], settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        optimizer(**settings)  # type: ignore[arg-type]
    assert str(caught.value) == message
