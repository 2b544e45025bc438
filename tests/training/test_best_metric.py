"""The best value of the monitored metric, early stopping, and the state that a checkpoint stores."""

import math
from typing import Any

import pytest

from runner.config.schema import Config
from runner.training.evaluation import BestMetric
from tests.small_runs import small_config

BETTER_BY = "train.min_delta=0.1"


def monitoring(metric: str, *overrides: str) -> Config:
    """A configuration with patience that monitors a metric; the best checkpoint is not kept."""
    return small_config(f"train.monitor={metric}", "train.patience=3", "checkpoint.keep_best=false", *overrides)


def after(config: Config, values: list[float]) -> BestMetric:
    """The state after values at steps 10, 20, ..."""
    state = BestMetric()
    for number, value in enumerate(values, start=1):
        state = state.updated(config, 10 * number, value, counted=True)
    return state


ACCURACY, LOSS = monitoring("test/accuracy"), monitoring("test/loss")


@pytest.mark.parametrize(
    ("config", "values", "expected"),
    [
        (ACCURACY, [0.5, 0.8, 0.7, 0.8], BestMetric(0.8, 20, 0.8, 2)),
        (LOSS, [0.5, 0.3, 0.7, 0.3], BestMetric(0.3, 20, 0.3, 2)),
        # A small improvement is the best value, but patience counts from the last improvement by min_delta.
        (monitoring("test/accuracy", BETTER_BY), [0.5, 0.55, 0.59], BestMetric(0.59, 30, 0.5, 2)),
        (monitoring("test/accuracy", BETTER_BY), [0.5, 0.55, 0.59, 0.61], BestMetric(0.61, 40, 0.61, 0)),
        (monitoring("test/loss", BETTER_BY), [0.5, 0.45, 0.41], BestMetric(0.41, 30, 0.5, 2)),
        (monitoring("test/loss", BETTER_BY), [0.5, 0.45, 0.41, 0.39], BestMetric(0.39, 40, 0.39, 0)),
        # Without patience nothing is counted.
        (monitoring("test/loss", "train.patience=null"), [0.5, 0.6, 0.4], BestMetric(0.4, 30)),
    ],
)
def test_the_state_after_some_values(config: Config, values: list[float], expected: BestMetric) -> None:
    assert after(config, values) == expected


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("config", [LOSS, ACCURACY], ids=["loss", "accuracy"])
def test_values_that_are_not_finite_are_never_better(config: Config, value: float) -> None:
    assert after(config, [value]) == BestMetric(waited=1)
    assert after(config, [value, 2.0, value]) == BestMetric(2.0, 20, 2.0, 1)


@pytest.mark.parametrize("state", [BestMetric(), BestMetric(waited=2), after(ACCURACY, [0.5, 0.8, 0.7])])
def test_a_checkpoint_stores_the_whole_state(state: BestMetric) -> None:
    progress: dict[str, Any] = {**state.to_progress(), "other": 1.0}
    assert BestMetric.at_start(ACCURACY, progress) == state


def test_an_evaluation_beyond_the_schedule_changes_the_best_value_only() -> None:
    state = after(ACCURACY, [0.5, 0.4])
    assert state.updated(ACCURACY, 25, 0.9, counted=False) == BestMetric(0.9, 25, 0.5, 1)
