"""How a monitored metric stands: what is best, what counts as an improvement, what a checkpoint keeps of it."""

from __future__ import annotations

import math

import pytest

from runner.config.monitor import Monitor
from runner.training.standing import Standing

ACCURACY, LOSS = Monitor("val/accuracy"), Monitor("val/loss")


def after(monitor: Monitor, values: list[float], min_delta: float = 0.0) -> Standing:
    """The standing after values at steps 10, 20, ..."""
    standing = Standing()
    for number, value in enumerate(values, start=1):
        standing = standing.seen(monitor, 10 * number, value).counted(monitor, value, min_delta)
    return standing


def test_the_first_of_equal_values_is_the_best() -> None:
    assert after(ACCURACY, [0.5, 0.8, 0.7, 0.8]) == Standing(0.8, 20, 0.8, 2)
    assert after(LOSS, [0.5, 0.3, 0.7, 0.3]) == Standing(0.3, 20, 0.3, 2)


@pytest.mark.parametrize(("monitor", "values"), [(ACCURACY, [0.5, 0.55, 0.59, 0.61]), (LOSS, [0.5, 0.45, 0.41, 0.39])])
def test_small_improvements_make_the_best_but_end_no_wait(monitor: Monitor, values: list[float]) -> None:
    assert after(monitor, values[:3], 0.1) == Standing(values[2], 30, values[0], 2)
    assert after(monitor, values, 0.1) == Standing(values[3], 40, values[3], 0), "all since the last that counted"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_no_better_than_none(value: float) -> None:
    assert after(LOSS, [value]) == Standing(waited=1)
    assert after(LOSS, [value, 2.0, value]) == Standing(2.0, 20, 2.0, 1)
    assert after(ACCURACY, [value, 2.0, value]) == Standing(2.0, 20, 2.0, 1)


@pytest.mark.parametrize("standing", [Standing(), Standing(waited=2), after(ACCURACY, [0.5, 0.8, 0.7])])
def test_a_checkpoint_keeps_all_of_it(standing: Standing) -> None:
    assert Standing.from_progress({**standing.to_progress(), "other": 1.0}) == standing


def test_what_is_seen_out_of_turn_is_not_waited_for() -> None:
    standing = after(ACCURACY, [0.5, 0.4])
    assert standing.seen(ACCURACY, 25, 0.9) == Standing(0.9, 25, 0.5, 1)
