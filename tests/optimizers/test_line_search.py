"""Line searches end at a point under the strong Wolfe conditions, or return None."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.optimizers.line_search import DECREASE, FLATTENING, Along, Point, between, search

Curve = Callable[[float], tuple[float, float]]


def quartic(t: float) -> tuple[float, float]:
    """Return value and slope of a function with two valleys."""
    return t**4 - 6.0 * t**2 - t, 4.0 * t**3 - 12.0 * t - 1.0


def bowl(t: float) -> tuple[float, float]:
    return (t - 3.0) ** 2, 2.0 * (t - 3.0)


def cliff(t: float) -> tuple[float, float]:
    """Not finite beyond 1."""
    return (-math.log(1.0 - t) - 3.0 * t, 1.0 / (1.0 - t) - 3.0) if t < 1.0 else (math.inf, math.nan)


def fall(t: float) -> tuple[float, float]:
    return -t, -1.0


def climb(t: float) -> tuple[float, float]:
    """Return a rising value with a falling slope."""
    return t, -1.0


CURVES: dict[str, Curve] = {"quartic": quartic, "bowl": bowl, "cliff": cliff}


def noted(curve: Curve) -> tuple[Along, list[Point]]:
    seen: list[Point] = []

    def along(step: float) -> Point:
        seen.append(Point(step, *curve(step)))
        return seen[-1]

    return along, seen


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("first", [1e-3, 0.1, 1.0, 1.9, 10.0, 1e3])
def test_found_point_satisfies_both_conditions(curve: Curve, first: float) -> None:
    along, seen = noted(curve)
    start = Point(0.0, *curve(0.0))
    found = search(along, start, first, 40)
    assert found is not None
    assert found.step > 0.0
    assert found is seen[-1]
    assert found.value <= start.value + DECREASE * found.step * start.slope
    assert abs(found.slope) <= FLATTENING * abs(start.slope)


def test_good_first_step_is_accepted() -> None:
    along, seen = noted(bowl)
    assert search(along, Point(0.0, *bowl(0.0)), 1.0, 40) == Point(1.0, *bowl(1.0))
    assert len(seen) == 1


@pytest.mark.parametrize("most", [1, 2, 7])
def test_evaluations_are_bounded(most: int) -> None:
    along, seen = noted(fall)
    found = search(along, Point(0.0, *fall(0.0)), 1.0, most)
    assert len(seen) == most
    assert found is not None
    assert found.step == 2.0 ** (most - 1)
    along, seen = noted(climb)
    assert search(along, Point(0.0, *climb(0.0)), 1.0, most) is None
    assert len(seen) == most


def test_lowest_point_of_the_bracket_is_returned_after_the_last_evaluation() -> None:
    along, seen = noted(lambda t: (-t, -1.0) if t < 4.0 else (10.0, 1.0))
    found = search(along, Point(0.0, 0.0, -1.0), 1.0, 5)
    assert found == min(seen, key=lambda point: point.value)
    assert found is not None
    assert found.step > 2.0


def test_point_above_the_previous_one_closes_a_bracket() -> None:
    """The point decreases enough and is still steep."""
    along, _ = noted(lambda t: {1.0: (-1.0, -1.0), 2.0: (-0.9, -1.0)}.get(t, (-1.05, 0.0)))
    found = search(along, Point(0.0, 0.0, -1.0), 1.0, 9)
    assert found is not None
    assert 1.0 < found.step < 2.0


@given(*[st.floats(-10, 10)] * 4, st.floats(-5, 5), st.sampled_from([1e-6, 1.0, -1.0, 1e6]))
def test_a_new_step_is_well_inside_the_bracket(a: float, b: float, c: float, d: float, at: float, width: float) -> None:
    step = between(Point(at, a, b), Point(at + width, c, d))
    assert 0.099 <= (step - at) / width <= 0.901


def test_minimizer_of_a_cubic_is_found() -> None:
    def cubic(t: float) -> Point:
        return Point(t, t**3 - 3.0 * t, 3.0 * t**2 - 3.0)

    assert between(cubic(0.0), cubic(1.9)) == pytest.approx(1.0)
    assert between(cubic(1.9), cubic(0.0)) == pytest.approx(1.0)


@pytest.mark.parametrize("high", [Point(1.0, math.inf, 1.0), Point(1.0, math.nan, 1.0), Point(1.0, 1.0, math.nan)])
def test_bracket_with_an_end_that_is_not_finite_is_halved(high: Point) -> None:
    assert between(Point(0.0, 0.0, -1.0), high) == 0.5
