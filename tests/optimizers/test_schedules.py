import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import ConfigError
from runner.optimizers.schedules import Constant, Cosine, Exponential, Schedule, Step

TOTAL, PER_EPOCH = 100, 12.5


def factors(schedule: Schedule, *steps: int) -> list[float]:
    return [schedule.factor(step, TOTAL, PER_EPOCH) for step in steps]


def test_constant() -> None:
    assert factors(Constant(), 0, 1, 99) == [1.0, 1.0, 1.0]


def test_step_in_fractions_of_the_run() -> None:
    schedule = Step(boundaries=[0.3, 0.7], multiplier=0.5)
    assert factors(schedule, 0, 29, 30, 69, 70, 99) == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def test_step_in_epochs() -> None:
    # Two epochs are 25 steps; 3 epochs are 37.5, so step 38 is the first after them.
    schedule = Step(boundaries=[2, 3], unit="epochs", multiplier=0.1)
    assert factors(schedule, 24, 25, 37, 38) == pytest.approx([1.0, 0.1, 0.1, 0.01], rel=1e-15)


def test_schedule_of_krizhevsky() -> None:
    schedule = Step(boundaries=[0.25, 0.5, 0.75], multiplier=250 ** (-1 / 3))
    rates = [0.01 * factor for factor in factors(schedule, 0, 24, 25, 50, 75, 99)]
    assert rates == pytest.approx([0.01, 0.01, 0.0015874, 0.00025198, 0.00004, 0.00004], rel=1e-4)


def test_exponential() -> None:
    schedule = Exponential(multiplier=0.25, every_epochs=2.0)
    assert factors(schedule, 0, 25, 50) == [1.0, 0.25, 0.0625]
    assert schedule.factor(1, TOTAL, 1.0) == 0.5


def test_exponential_staircase() -> None:
    schedule = Exponential(multiplier=0.25, every_epochs=2.0, staircase=True)
    assert factors(schedule, 0, 24, 25, 49, 50) == [1.0, 1.0, 0.25, 0.25, 0.0625]


def test_cosine() -> None:
    found = factors(Cosine(final_factor=0.2), 0, 25, 50, 75, 100, 120)
    quarter = math.sqrt(0.5) / 2
    expected = [1.0, 0.2 + 0.8 * (0.5 + quarter), 0.6, 0.2 + 0.8 * (0.5 - quarter), 0.2, 0.2]
    assert found == pytest.approx(expected, rel=1e-12)


def test_warmup_rises_linearly_to_the_full_rate() -> None:
    assert factors(Constant(warmup_steps=4), 0, 1, 2, 3, 4, 5) == [0.2, 0.4, 0.6, 0.8, 1.0, 1.0]


def test_warmup_scales_the_decay_without_shifting_it() -> None:
    schedule = Step(boundaries=[0.02], multiplier=0.5, warmup_steps=4)
    assert factors(schedule, 0, 1, 2, 3, 4) == pytest.approx([0.2, 0.4, 0.3, 0.4, 0.5])


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
    # Far down an exponential the factor is less than the smallest double.
    assert all(0.0 <= factor <= 1.0 for factor in path)


@pytest.mark.parametrize(
    ("schema", "settings", "message"),
    [
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
def test_impossible_settings(schema: type[Schedule], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        schema(**settings)
    assert str(caught.value) == message
