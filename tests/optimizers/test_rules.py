"""Update rules, compared with their papers' formulas in NumPy, and the properties that distinguish them."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runner.optimizers import Adagrad, Adam, AdamW, HeavyBall, Momentum, Optimizer, RmsProp, Sgd
from tests.optimizers.support import RATES, START, Array, Trainer, assert_same_path, gradient_steps

ZEROS = {name: np.zeros_like(value) for name, value in START.items()}
ONES = {name: np.ones_like(value) for name, value in START.items()}

Slots = dict[str, Array]
Formula = Callable[[Array, Array, float, float, int, Slots], Array]
"""(w, gradient, learning rate, decay, t, slots) -> new w. t is 1 at the first step. The slots start at 0."""

B1, B2, EPSILON = 0.8, 0.95, 1e-6


def sgd(w: Array, g: Array, lr: float, decay: float, t: int, slots: Slots) -> Array:
    return w - lr * (g + decay * w)


def krizhevsky(w: Array, g: Array, lr: float, decay: float, t: int, slots: Slots) -> Array:
    slots["velocity"] = 0.8 * slots["velocity"] - lr * decay * w - lr * g
    return w + slots["velocity"]


def inception_guide(w: Array, g: Array, lr: float, decay: float, t: int, slots: Slots) -> Array:
    """Return the new w with momentum 0.8, in the form that torch.optim.SGD also uses."""
    slots["accumulator"] = 0.8 * slots["accumulator"] + g + decay * w
    return w - lr * slots["accumulator"]


def nesterov(w: Array, g: Array, lr: float, decay: float, t: int, slots: Slots) -> Array:
    """Return the new w of Sutskever et al. 2013, equations 3 and 4, at the point where the gradient is taken."""
    g = g + decay * w
    slots["accumulator"] = 0.8 * slots["accumulator"] + g
    return w - lr * (g + 0.8 * slots["accumulator"])


def tensorflow_rmsprop(w: Array, g: Array, lr: float, decay: float, t: int, slots: Slots) -> Array:
    g = g + decay * w
    square = slots["mean_square"] if t > 1 else 1.0
    slots["mean_square"] = 0.9 * square + 0.1 * g**2
    slots["momentum"] = 0.8 * slots["momentum"] + lr * g / np.sqrt(slots["mean_square"] + 1.0)
    return w - slots["momentum"]


def decoupled(formula: Formula) -> Formula:
    """Return the formula with decoupled weight decay (Loshchilov and Hutter 2019, algorithms 1 and 2)."""

    def changed(w: Array, g: Array, lr: float, decay: float, t: int, slots: Slots) -> Array:
        return formula(w, g, lr, 0.0, t, slots) - lr * decay * w

    return changed


def dist_belief(w: Array, g: Array, lr: float, decay: float, t: int, slots: Slots) -> Array:
    g = g + decay * w
    slots["squares"] = slots["squares"] + g**2
    return w - lr * g / np.sqrt(slots["squares"])


def kingma_and_ba(
    w: Array, g: Array, lr: float, decay: float, t: int, slots: Slots, b1: float = B1, b2: float = B2
) -> Array:
    g = g + decay * w
    slots["first_moment"] = b1 * slots["first_moment"] + (1 - b1) * g
    slots["second_moment"] = b2 * slots["second_moment"] + (1 - b2) * g**2
    m_hat, v_hat = slots["first_moment"] / (1 - b1**t), slots["second_moment"] / (1 - b2**t)
    return w - lr * m_hat / (np.sqrt(v_hat) + EPSILON)


def betas_of_zero(w: Array, g: Array, lr: float, decay: float, t: int, slots: Slots) -> Array:
    return kingma_and_ba(w, g, lr, decay, t, slots, 0.0, 0.0)


def torch_adamw(w: Array, g: Array, lr: float, decay: float, t: int, slots: Slots) -> Array:
    return kingma_and_ba(w, g, lr, 0.0, t, slots) - lr * decay * w


def path(
    formula: Formula, decay: float, bias_factor: float = 1.0, bias_decay: float = 0.0
) -> tuple[list[dict[str, Array]], list[str]]:
    """Return the variables after each step, and the names of the slots.

    The learning rate of biases is ``bias_factor`` times that of weights.
    """
    w, steps = dict(START), []
    slots: dict[str, Slots] = {name: defaultdict(lambda: np.zeros(())) for name in START}
    for t, (gradients, rate) in enumerate(zip(gradient_steps(), RATES, strict=True), start=1):
        for name, g in gradients.items():
            lr, own = (rate, decay) if name == "fc1/weights" else (rate * bias_factor, bias_decay)
            w[name] = formula(w[name], g, lr, own, t, slots[name])
        steps.append(dict(w))
    return steps, [f"{name}/{slot}" for name in START for slot in slots[name]]


BETAS = {"beta1": B1, "beta2": B2, "epsilon": EPSILON}

RMSPROP = {"decay": 0.9, "momentum": 0.8, "epsilon": 1.0}
DECOUPLED = {"decoupled_weight_decay": True}

RULES: dict[str, tuple[type[Optimizer], dict[str, Any], Formula]] = {
    "sgd": (Sgd, {}, sgd),
    "momentum": (Momentum, {"momentum": 0.8}, krizhevsky),
    "momentum with faster biases": (Momentum, {"momentum": 0.8, "bias_lr_factor": 2.0}, krizhevsky),
    "heavy_ball": (HeavyBall, {"momentum": 0.8}, inception_guide),
    "heavy_ball with nesterov": (HeavyBall, {"momentum": 0.8, "nesterov": True}, nesterov),
    "rmsprop": (RmsProp, RMSPROP, tensorflow_rmsprop),
    "adagrad": (Adagrad, {}, dist_belief),
    "adam": (Adam, BETAS, kingma_and_ba),
    "adam with betas of 0": (Adam, {"beta1": 0.0, "beta2": 0.0, "epsilon": EPSILON}, betas_of_zero),
    "adamw": (AdamW, BETAS, torch_adamw),
    "sgd, decoupled": (Sgd, DECOUPLED, sgd),
    "momentum, decoupled": (Momentum, {"momentum": 0.8, **DECOUPLED}, decoupled(krizhevsky)),
    "rmsprop, decoupled": (RmsProp, {**RMSPROP, **DECOUPLED}, decoupled(tensorflow_rmsprop)),
    "adam, decoupled": (Adam, {**BETAS, **DECOUPLED}, torch_adamw),
    "adamw, decoupled": (AdamW, {**BETAS, **DECOUPLED}, torch_adamw),
}


@pytest.mark.parametrize(("decay", "dtype", "tolerance"), [(0.2, "float64", 1e-12), (0.0, "float32", 2e-5)])
@pytest.mark.parametrize("label", RULES)
def test_rule_equals_its_formula(label: str, decay: float, dtype: str, tolerance: float) -> None:
    optimizer, settings, formula = RULES[label]
    expected, slots = path(formula, decay, settings.get("bias_lr_factor", 1.0))
    trainer = Trainer(optimizer(weight_decay=decay, **settings), dtype)
    found = trainer.run(gradient_steps(), RATES)
    assert {value.dtype.name for value in found[-1].values()} == {dtype}
    assert_same_path(found, expected, tolerance)
    kept = [v for v in trainer.variables if not v.trainable]
    assert [v.name for v in kept] == slots
    assert all(v.spec == trainer.variables[v.name.rpartition("/")[0]].spec for v in kept)
    assert all(v.layer is not None and v.layer.name == "fc1" and not v.decayed for v in kept)


@pytest.mark.parametrize("label", [label for label in RULES if "faster" not in label])
def test_a_rule_by_name_gives_biases_another_rate_and_decay(label: str) -> None:
    optimizer, settings, formula = RULES[label]
    biases = {"match": "*/bias", "lr_factor": 2.0, "weight_decay": 0.3}
    trainer = Trainer(optimizer(weight_decay=0.2, rules=[biases], **settings))
    assert_same_path(trainer.run(gradient_steps(), RATES), path(formula, 0.2, 2.0, 0.3)[0])


def test_a_rule_for_all_variables_that_comes_first_leaves_nothing_to_the_others() -> None:
    first = Trainer(Sgd(weight_decay=0.2, rules=[{"match": "fc?/*"}, {"match": "*/bias", "lr_factor": 2.0}]))
    assert_same_path(first.run(gradient_steps(), RATES), path(sgd, 0.2)[0])


TORCH: dict[str, tuple[Optimizer, str, dict[str, Any]]] = {
    "nesterov": (HeavyBall(nesterov=True), "SGD", {"momentum": 0.9, "nesterov": True}),
    "adamw": (Adam(decoupled_weight_decay=True), "AdamW", {}),
}


@pytest.mark.parametrize("label", TORCH)
def test_groups_of_parameters_equal_those_of_pytorch(label: str) -> None:
    torch = pytest.importorskip("torch")
    optimizer, name, settings = TORCH[label]
    optimizer = replace(optimizer, weight_decay=0.1, rules=[{"match": "*/bias", "lr_factor": 0.5, "weight_decay": 0.4}])
    found = Trainer(optimizer).run(gradient_steps(), RATES)
    tensors = {each: torch.tensor(value, requires_grad=True) for each, value in START.items()}
    factors, decays = {"fc1/weights": 1.0, "fc1/bias": 0.5}, {"fc1/weights": 0.1, "fc1/bias": 0.4}
    groups = [{"params": [tensors[each]], "lr": 0.0, "weight_decay": decays[each]} for each in START]
    other = getattr(torch.optim, name)(groups, **settings)
    expected = []
    for gradients, rate in zip(gradient_steps(), RATES, strict=True):
        for each, group in zip(START, other.param_groups, strict=True):
            tensors[each].grad, group["lr"] = torch.tensor(gradients[each]), rate * factors[each]
        other.step()
        expected.append({each: tensor.detach().numpy().copy() for each, tensor in tensors.items()})
    assert_same_path(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_adagrad_moves_no_element_without_a_gradient(dtype: str) -> None:
    moved = {**ZEROS, "fc1/bias": np.array([0.0, 1.0, 0.0])}
    first, second = Trainer(Adagrad(), dtype).run([ZEROS, moved], [0.1, 0.1])
    for name, start in START.items():
        np.testing.assert_array_equal(first[name], start.astype(dtype))
    step = np.array([0.0, 0.1, 0.0], dtype)
    np.testing.assert_array_equal(second["fc1/bias"], START["fc1/bias"].astype(dtype) - step)


def test_adagrad_ignores_a_gradient_whose_square_is_zero() -> None:
    tiny = {name: np.full_like(value, 1e-30) for name, value in START.items()}
    (after,) = Trainer(Adagrad(), "float32").run([tiny], [1e30])
    np.testing.assert_array_equal(after["fc1/weights"], START["fc1/weights"].astype("float32"))


def test_adagrad_propagates_nan() -> None:
    broken = {name: np.full_like(value, np.nan) for name, value in START.items()}
    (after,) = Trainer(Adagrad()).run([broken], [0.1])
    assert np.isnan(after["fc1/weights"]).all()


def test_corrections_of_adam_are_accurate_in_float32() -> None:
    after = Trainer(Adam(beta2=0.999), dtype="float32").run([ONES] * 20, [1.0] * 20)
    # With gradients of 1 and a learning rate of 1, a value changes by 1 per step if both corrections are exact.
    np.testing.assert_allclose(START["fc1/bias"] - after[-1]["fc1/bias"], 20.0, rtol=2e-6)


def test_variables_share_the_corrections_of_adam() -> None:
    assert [node.op for node in Trainer(Adam()).graph].count("exp") == 2
