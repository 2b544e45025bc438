"""Settings of all optimizers: rules for variables by name, scaling with the batch, and averages of the weights."""

from typing import Any

import numpy as np
import pytest

from runner.errors import ConfigError
from runner.optimizers import OPTIMIZERS, Adam, Lbfgs, Momentum, Optimizer, RmsProp, Sgd
from runner.optimizers.averages import AVERAGE, WeightsAverage, average_of
from runner.optimizers.batch_scaling import BatchScaling
from runner.optimizers.schedules import Step
from tests.optimizers.support import RATES, START, Array, Trainer, assert_same_path, gradient_steps

HALVED = {"name": "step", "boundaries": [0.5], "multiplier": 0.1}
BIASES = {"match": "*/bias", "lr_factor": 2.0}
NAMES = ["conv1/weights", "conv1/bias", "fc1/weights", "fc1/bias"]


def test_krizhevskys_biases_have_twice_the_rate_and_a_separate_schedule() -> None:
    """The settings of the released networks.

    The rate 0.01 is multiplied by 250 ** (-1/3) at each quarter of the run. The rate of biases, 0.02, is divided by 10
    at half of the run.
    """
    optimizer = Momentum(lr=0.01, rules=[{**BIASES, "schedule": HALVED}])
    run = Step(boundaries=[0.25, 0.5, 0.75], multiplier=250 ** (-1 / 3))
    (of_biases,) = optimizer.schedules
    rates = [[0.01 * each.factor(step, 8, 1.0) for each in (run, of_biases)] for step in range(8)]
    assert [rate for _, rate in rates] == pytest.approx([0.01] * 4 + [0.001] * 4)
    steps = gradient_steps(steps=8)
    found = Trainer(optimizer).run(steps, rates)
    weights = Trainer(Momentum()).run(steps, [rate for rate, _ in rates])
    biases = Trainer(Momentum()).run(steps, [2 * rate for _, rate in rates])
    for each, w, b in zip(found, weights, biases, strict=True):
        np.testing.assert_allclose(each["fc1/weights"], w["fc1/weights"], rtol=1e-12)
        np.testing.assert_allclose(each["fc1/bias"], b["fc1/bias"], rtol=1e-12)


def test_a_rule_comes_before_the_factor_of_biases() -> None:
    left = Trainer(Momentum(bias_lr_factor=2.0)).run(gradient_steps(), RATES)
    assert_same_path(left, Trainer(Momentum(rules=[BIASES])).run(gradient_steps(), RATES), 0.0)
    both = Momentum(bias_lr_factor=2.0, rules=[{"match": "fc1/b*", "lr_factor": 3.0}])
    assert_same_path(
        Trainer(both).run(gradient_steps(), RATES), Trainer(Momentum(bias_lr_factor=3.0)).run(gradient_steps(), RATES)
    )


def test_a_factor_of_zero_keeps_variables_at_their_initial_values() -> None:
    frozen = Adam(weight_decay=0.1, rules=[{"match": "*weights", "lr_factor": 0.0}])
    found = Trainer(frozen).run(gradient_steps(), RATES)
    np.testing.assert_array_equal(found[-1]["fc1/weights"], START["fc1/weights"])
    assert (found[-1]["fc1/bias"] != START["fc1/bias"]).all()


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            [BIASES, {"match": "pool*"}],
            r"optimizer.rules\[1\].match='pool\*': no trained variable has this name; expected a pattern, with \* and "
            r"\?, of names such as conv1/weights, conv1/bias, fc1/weights, fc1/bias$",
        ),
        (
            [BIASES, {"match": "fc1/bias"}],
            r"optimizer.rules\[1\].match='fc1/bias': earlier rules match all variables of this rule, fc1/bias",
        ),
    ],
)
def test_a_rule_that_applies_to_no_variable_is_refused(rules: list[Any], message: str) -> None:
    Sgd(rules=[BIASES]).require_fitting(NAMES)
    with pytest.raises(ConfigError, match=message):
        Sgd(rules=rules).require_fitting(NAMES)
    # The rule that bias_lr_factor implies may match no variable.
    Momentum(bias_lr_factor=2.0).require_fitting(["conv1/weights"])


def test_an_error_about_a_rule_names_some_of_many_variables() -> None:
    with pytest.raises(ConfigError, match=r"such as conv0/weights, .*, conv7/weights and 92 more$"):
        Sgd(rules=[BIASES]).require_fitting([f"conv{k}/weights" for k in range(100)])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"lr_factor": 2.0}, r"optimizer.rules\[0\]: missing \['match'\], expected the fields match, lr_factor"),
        ({**BIASES, "lr": 1.0}, r"optimizer.rules\[0\]: unknown \['lr'\], expected the fields match"),
        ({"match": 3}, r"optimizer.rules\[0\].match: 3, expected text"),
        ({"match": "*", "lr_factor": -1.0}, r"optimizer.rules\[0\].lr_factor: -1.0, expected 0 to 1e\+38"),
        ({"match": "*", "schedule": "step"}, r"rules\[0\].schedule: found 'step', expected keys of a schedule, with"),
        ({"match": "*", "schedule": {"name": "steps"}}, r"with name one of constant, step, exponential"),
        ({"match": "*", "schedule": {"name": ["step"]}}, r"found \{'name': \['step'\]\}, expected keys of a schedule"),
        (
            {"match": "*", "schedule": {"name": "cosine", "final": 1}},
            r"optimizer.rules\[0\].schedule: unknown \['final'\], expected the fields name, warmup_steps",
        ),
        (
            {"match": "*", "schedule": {"name": "step", "unit": "hours"}},
            r"optimizer.rules\[0\].schedule: schedule.unit='hours': expected one of progress, epochs",
        ),
    ],
)
def test_rules_that_the_schema_does_not_allow_are_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sgd(rules=[rule])


@pytest.mark.parametrize(
    "settings",
    [
        {"rules": [BIASES]},
        {"decoupled_weight_decay": True},
        {"batch_scaling": BatchScaling("linear", base_batch=8)},
        {"average": WeightsAverage(0.9)},
    ],
)
def test_lbfgs_refuses_settings_that_its_line_search_cannot_follow(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"^optimizer\.{next(iter(settings))}.*: expected "):
        Lbfgs(**settings)


# Scaling with the batch.


def test_the_decay_of_a_larger_batch_is_that_of_krizhevskys_example() -> None:
    optimizer = Sgd(lr=0.01, weight_decay=0.0005, batch_scaling=BatchScaling("sqrt", True, 128)).for_batch(1024)
    # Half a unit of the last printed digit.
    assert optimizer.lr == pytest.approx(0.0282843, abs=5e-8)
    assert optimizer.weight_decay == pytest.approx(0.00141418881, abs=5e-12)
    assert optimizer.weight_decay / (np.sqrt(8) * 0.0005) == pytest.approx(0.9999825, abs=5e-8)
    assert optimizer.for_batch(7) is optimizer, "a scaled optimizer is not scaled again"


@pytest.mark.parametrize(("rate", "factor"), [("none", 1.0), ("linear", 8.0), ("sqrt", 8**0.5)])
def test_one_update_of_a_large_batch_shrinks_weights_like_several_of_the_base_batch(rate: str, factor: float) -> None:
    scaling = BatchScaling(rate, True, 128)
    own, inherited = {"match": "*/bias", "lr_factor": 2.0, "weight_decay": 0.03}, {"match": "*", "lr_factor": 3.0}
    without_gradients = [{name: np.zeros_like(value) for name, value in START.items()}]
    for rules, weights, bias in (
        ([], 1 - 0.1 * 0.02, 1.0),
        ([own, inherited], 1 - 3 * 0.1 * 0.02, 1 - 2 * 0.1 * 0.03),
        ([inherited], 1 - 3 * 0.1 * 0.02, 1.0),
    ):
        scaled = Momentum(lr=0.1, weight_decay=0.02, rules=rules, batch_scaling=scaling).for_batch(1024)
        assert scaled.lr == pytest.approx(0.1 * factor)
        (found,) = Trainer(scaled).run(without_gradients, [scaled.lr])
        for name, kept in (("fc1/weights", weights), ("fc1/bias", bias)):
            np.testing.assert_allclose(found[name], START[name] * kept**8, rtol=1e-14, err_msg=name)
    only_rate = Momentum(lr=0.1, weight_decay=0.02, batch_scaling=BatchScaling(rate, base_batch=128)).for_batch(64)
    assert (only_rate.lr, only_rate.weight_decay) == (pytest.approx(0.1 * factor ** (-1 / 3)), 0.02)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rate": "square"}, "batch_scaling.rate='square': expected one of none, linear, sqrt"),
        ({"rate": "sqrt"}, "base_batch=null with rate=sqrt and weight_decay=false: expected the batch for which"),
        ({"weight_decay": True}, "base_batch=null with rate=none and weight_decay=true: expected the batch for which"),
    ],
)
def test_scaling_without_a_base_is_refused(scaling: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"optimizer.*{message}"):
        BatchScaling(**scaling)


def test_a_decay_that_leaves_nothing_of_a_weight_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"with a learning rate of 2 and a weight decay of 0\.5: expected a product"):
        Sgd(lr=2.0, weight_decay=0.5, batch_scaling=BatchScaling("linear", True, 8)).for_batch(16)


# Averages of the weights.


@pytest.mark.parametrize("optimizer", [Sgd(), Adam(), RmsProp(rules=[BIASES])], ids=lambda each: each.name)
@pytest.mark.parametrize("num_updates", [True, False])
def test_averages_follow_tensorflows_rule(optimizer: Optimizer, num_updates: bool) -> None:
    """After update t = 1, 2, ..., the decay is at most (1 + t) / (10 + t): 2/11, 3/12, 4/13, 5/14, 6/15, 7/16."""
    decay = 0.4
    plain = Trainer(optimizer).run(gradient_steps(), RATES)
    trainer = Trainer(type(optimizer)(rules=optimizer.rules, average=WeightsAverage(decay, num_updates)))
    assert_same_path(trainer.run(gradient_steps(), RATES), plain, 0.0)
    expected: dict[str, Array] = dict(START)
    for t, values in enumerate(plain, start=1):
        d = min(decay, (1 + t) / (10 + t)) if num_updates else decay
        expected = {name: d * expected[name] + (1 - d) * values[name] for name in START}
    for name, value in expected.items():
        found = trainer.state[trainer.variables[average_of(name)].tensor]
        np.testing.assert_allclose(found, value, rtol=1e-12, err_msg=name)


GRADIENTS = (0.5, -0.25, 1.0, 2.0, 0.0, -1.5)
TENSORFLOW = (
    *(0.9639625007878002, 0.9499652607986401, 0.8639429597271532),
    *(0.650734878672595, 0.4588476108067695, 0.3879240410564713),
)
LAST_AVERAGE = 0.46078155151882694
"""The values of a variable that starts at 1, after the update with each gradient, and its average after the last one.
Computed by TensorFlow 2.21 with RMSPropOptimizer(0.1, 0.9, momentum=0.9, epsilon=1.0) and
ExponentialMovingAverage(0.4, num_updates=global_step)."""


def test_rmsprop_and_averages_equal_those_of_tensorflow() -> None:
    optimizer = RmsProp(decay=0.9, momentum=0.9, epsilon=1.0, average=WeightsAverage(0.4))
    steps = [{name: np.full_like(value, g) for name, value in START.items()} for g in GRADIENTS]
    trainer = Trainer(optimizer)
    found = trainer.run(steps, [0.1] * len(steps))
    for name, start in START.items():
        # TensorFlow rounds decay and momentum to float32.
        for values, after in zip(found, TENSORFLOW, strict=True):
            np.testing.assert_allclose(values[name], start + (after - 1.0), rtol=0, atol=5e-8)
        average = trainer.state[trainer.variables[average_of(name)].tensor]
        np.testing.assert_allclose(average, start + (LAST_AVERAGE - 1.0), rtol=0, atol=5e-8)


def test_the_average_of_a_constant_weight_is_the_weight() -> None:
    frozen = Sgd(rules=[{"match": "*", "lr_factor": 0.0}], average=WeightsAverage(0.999, num_updates=False))
    trainer = Trainer(frozen, "float32")
    trainer.run(gradient_steps(), RATES)
    for name, value in START.items():
        found = trainer.state[trainer.variables[average_of(name)].tensor]
        np.testing.assert_array_equal(found, value.astype("float32"))


def test_evaluations_read_averages_if_the_run_keeps_them() -> None:
    stored = {"a/weights": 1, "a/weights/average": 2, "a/moving_mean": 3}
    assert Sgd().evaluated(stored) == stored
    assert Sgd(average=WeightsAverage(0.9)).evaluated(stored) == {**stored, "a/weights": 2}


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - {"lbfgs"}))
def test_settings_at_their_defaults_add_no_node(name: str) -> None:
    plain, optimizer = Trainer(OPTIMIZERS[name]()), OPTIMIZERS[name]()
    assert optimizer.rate_shape == ()
    assert not [node for node in plain.graph if AVERAGE in node.name]
    assert optimizer.for_batch(64) is optimizer
