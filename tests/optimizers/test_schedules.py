"""Learning-rate schedules: their factors, warm-up, and settings that are refused."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import ConfigError
from runner.optimizers.schedules import Constant, Cosine, Exponential, Inception, Schedule, Step

TOTAL, PER_EPOCH = 100, 12.5
EIGHTH = math.sqrt(0.5) / 2
KRIZHEVSKY = Step(boundaries=[0.25, 0.5, 0.75], multiplier=250 ** (-1 / 3))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Constant(), {0: 1.0, 1: 1.0, 99: 1.0}),
        (Step(boundaries=[0.3, 0.7], multiplier=0.5), {0: 1.0, 29: 1.0, 30: 0.5, 69: 0.5, 70: 0.25, 99: 0.25}),
        # Two epochs are 25 steps; 3 epochs are 37.5, so step 38 is the first after them.
        (Step(boundaries=[2, 3], unit="epochs", multiplier=0.1), {24: 1.0, 25: 0.1, 37: 0.1, 38: 0.01}),
        (KRIZHEVSKY, {0: 1.0, 24: 1.0, 25: 0.15874, 50: 0.025198, 75: 0.004, 99: 0.004}),
        (Exponential(multiplier=0.25, every_epochs=2.0), {0: 1.0, 25: 0.25, 50: 0.0625, 1: 0.25 ** (1 / 25)}),
        (
            Exponential(multiplier=0.25, every_epochs=2.0, staircase=True),
            {0: 1.0, 24: 1.0, 25: 0.25, 49: 0.25, 50: 0.0625},
        ),
        (
            Cosine(final_factor=0.2),
            {0: 1.0, 25: 0.2 + 0.8 * (0.5 + EIGHTH), 50: 0.6, 75: 0.2 + 0.8 * (0.5 - EIGHTH), 100: 0.2, 120: 0.2},
        ),
        (Exponential(multiplier=0.1, staircase=True, floor=0.02), {0: 1.0, 13: 0.1, 25: 0.02, 99: 0.02}),
        # A warm-up rises to the full rate. It multiplies the decay factor and does not delay the decay.
        (Constant(warmup_steps=4), {0: 0.2, 1: 0.4, 2: 0.6, 3: 0.8, 4: 1.0, 5: 1.0}),
        # He et al. 2016, section 5: 400 steps at 0.01, for a base rate of 0.1.
        (Constant(warmup_steps=400, warmup_factor=0.1), {0: 0.1, 399: 0.1, 400: 1.0}),
        (Step(boundaries=[0.02], multiplier=0.5, warmup_steps=4), {0: 0.2, 1: 0.4, 2: 0.3, 3: 0.4, 4: 0.5}),
    ],
)
def test_steps_have_the_expected_factors(schedule: Schedule, expected: dict[int, float]) -> None:
    found = {step: schedule.factor(step, TOTAL, PER_EPOCH) for step in expected}
    assert found == pytest.approx(expected, rel=1e-4 if schedule is KRIZHEVSKY else 1e-12)


@pytest.mark.parametrize(
    ("schedule", "step", "per_epoch", "expected"),
    [
        (Step(boundaries=[30.0], unit="epochs"), 33, 1.1, 0.1),
        (Exponential(multiplier=0.1, every_epochs=0.2, staircase=True), 6, 10.0, 0.001),
        (Inception(cold_epochs=30), 33, 1.1, 0.2 * 0.94 ** (37 / 3)),
    ],
)
def test_a_rounded_quotient_does_not_delay_a_boundary(
    schedule: Schedule, step: int, per_epoch: float, expected: float
) -> None:
    assert schedule.factor(step, 10_000, per_epoch) == pytest.approx(expected)


WARM_UP = [0.0831, 0.0831, 0.1661, 0.2492, 0.3322, 0.4153, 0.4984, 0.5814, 0.6645, 0.7475, 0.8306, 0.9136, 0.7807]
"""Factors of epochs 0 to 12 in the published code of the Inception v3 guide, with 2 cold epochs and 7 of warm-up."""


@pytest.mark.parametrize("overshoot", [True, False])
def test_the_guides_warm_up_joins_its_staircase(overshoot: bool) -> None:
    schedule = Inception(overshoot=overshoot)
    first, last = ([schedule.factor(e * 100 + k, 10**5, 100.0) for e in range(460)] for k in (0, 99))
    assert first == last, "the factor changes only between epochs"
    expected = [*WARM_UP[:11], WARM_UP[11] if overshoot else WARM_UP[10], *WARM_UP[12:]]
    assert first[:13] == pytest.approx(expected, abs=5e-5)
    staircase = [max(1e-4, 0.94 ** (e // 3)) for e in range(460)]
    assert first[12:] == pytest.approx(staircase[12:], rel=1e-12)
    # The floor of 1e-4 is reached after 447 epochs.
    assert (staircase[446] > 1e-4, staircase[450]) == (True, 1e-4)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    warmup = draw(st.integers(0, 40))
    fraction = st.floats(0.01, 1.0)
    return draw(
        st.one_of(
            st.just(Constant(warmup_steps=warmup)),
            st.builds(Step, warmup_steps=st.just(warmup), multiplier=fraction),
            st.builds(Exponential, warmup_steps=st.just(warmup), multiplier=fraction, staircase=st.booleans()),
            st.builds(Cosine, warmup_steps=st.just(warmup), final_factor=fraction),
        )
    )


@given(schedules(), st.integers(2, 200), st.floats(0.5, 50.0))
def test_warmup_joins_the_decay_without_a_jump(schedule: Schedule, total: int, per_epoch: float) -> None:
    path = [schedule.factor(step, total, per_epoch) for step in range(total)]
    decay = [schedule.decay(step, total, per_epoch) for step in range(total)]
    ramp = 1.0 / (schedule.warmup_steps + 1)
    assert path[schedule.warmup_steps :] == decay[schedule.warmup_steps :]
    for step in range(1, total):
        jump = abs(path[step] - path[step - 1])
        assert jump <= ramp + abs(decay[step] - decay[step - 1]) + 1e-12
    # Late in an exponential decay, the factor underflows to 0.
    assert all(0.0 <= factor <= 1.0 for factor in path)


@pytest.mark.parametrize(
    ("schema", "settings", "message"),
    [
        (Inception, {"warmup_epochs": 0, "every_epochs": 1.0}, "schedule.warmup_epochs=0: expected more than 0"),
        (Step, {"unit": "hours"}, "schedule.unit='hours': expected one of progress, epochs"),
        (
            Step,
            {"boundaries": [30.0, 60.0]},
            "schedule.boundaries=[30.0, 60.0]: expected rising fractions of the run, above 0 and below 1",
        ),
        (
            Step,
            {"boundaries": [2.0, 1.0], "unit": "epochs"},
            "schedule.boundaries=[2.0, 1.0]: expected rising numbers of epochs above 0",
        ),
    ],
)
def test_impossible_settings_are_refused(schema: type[Schedule], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        schema(**settings)
    assert str(caught.value) == message
