from __future__ import annotations

from runner.optimizers import Sgd
from tests.optimizers.support import RATES, START, Array, Trainer, assert_same_path, gradient_steps


def by_numpy(weight_decay: float) -> list[dict[str, Array]]:
    w = dict(START)
    path = []
    for g, lr in zip(gradient_steps(), RATES, strict=True):
        w = {
            "fc1/weights": w["fc1/weights"] - lr * (g["fc1/weights"] + weight_decay * w["fc1/weights"]),
            "fc1/bias": w["fc1/bias"] - lr * g["fc1/bias"],
        }
        path.append(w)
    return path


def test_follows_its_formula() -> None:
    trainer = Trainer(Sgd())
    assert_same_path(trainer.run(gradient_steps(), RATES), by_numpy(0.0))
    assert len(trainer.targets) == 2


def test_weights_decay_and_biases_do_not() -> None:
    found = Trainer(Sgd(weight_decay=0.1)).run(gradient_steps(), RATES)
    assert_same_path(found, by_numpy(0.1))


def test_follows_its_formula_in_float32() -> None:
    trainer = Trainer(Sgd(weight_decay=0.1), dtype="float32")
    found = trainer.run(gradient_steps(), RATES)
    assert {value.dtype.name for value in found[-1].values()} == {"float32"}
    assert_same_path(found, by_numpy(0.1), tolerance=1e-5)
