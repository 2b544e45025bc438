"""L-BFGS on problems with known minima, compared with SciPy; the commands of L-BFGS; line searches."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from runner.errors import NumericError
from runner.optimizers.lbfgs import DIRECTION, GRADIENT, History, X, commands, iterate, pair_names
from runner.optimizers.line_search import DECREASE, FLATTENING, Along, Point, between, search
from tests.optimizers.minimising import NumpyMachine, Objective, Quadratic, Vector, beale, booth, minimised, rosenbrock

QUADRATIC = Quadratic(size=20, condition=100.0, seed=1)


def rounded(x: Vector) -> tuple[float, Vector]:
    """The quadratic with a value in float32, so that values near the minimum differ by rounding errors only."""
    value, gradient = QUADRATIC(x)
    return float(np.float32(value)), gradient


PROBLEMS: dict[str, tuple[Objective, Vector, Vector]] = {
    "rosenbrock": (rosenbrock, np.array([-1.2, 1.0]), np.ones(2)),
    "rosenbrock of 10": (rosenbrock, np.tile([-1.2, 1.0], 5), np.ones(10)),
    "beale": (beale, np.array([1.0, 1.0]), np.array([3.0, 0.5])),
    "booth": (booth, np.array([-5.0, 8.0]), np.array([1.0, 3.0])),
    "quadratic": (QUADRATIC, np.zeros(20), QUADRATIC.solution),
    "quadratic with rounded values": (rounded, np.zeros(20), QUADRATIC.solution),
}
"""Name -> objective, start, minimizer."""


@pytest.mark.parametrize("name", PROBLEMS)
def test_lbfgs_finds_the_minimum_with_about_as_many_evaluations_as_scipy(name: str) -> None:
    objective, start, solution = PROBLEMS[name]
    machine = NumpyMachine(objective, start)
    done = minimised(machine, History(10))
    np.testing.assert_allclose(machine.vectors[X], solution, atol=1e-6)
    settings = {"maxcor": 10, "gtol": 1e-7, "ftol": 0.0}
    exact = QUADRATIC if objective is rounded else objective
    reference = minimize(exact, start, jac=True, method="L-BFGS-B", options=settings)
    np.testing.assert_allclose(machine.vectors[X], reference.x, atol=1e-5)
    # The first evaluation of each iteration does not count: SciPy, whose objective is fixed, does not need it.
    assert len(machine.values) - len(done) <= 1.5 * reference.nfev + 5


def after_one_iteration() -> tuple[NumpyMachine, History]:
    machine, history = NumpyMachine(booth, np.array([-5.0, 8.0])), History(4)
    iterate(machine, history, longest=1.0, most=20)
    return machine, history


def inverse_by_formula(pairs: list[tuple[Vector, Vector]], size: int) -> Vector:
    """Return the inverse Hessian by the BFGS formula in dense matrices. pairs: (step, change), oldest first."""
    s, y = pairs[-1]
    inverse = np.eye(size) * (s @ y) / (y @ y)
    for s, y in pairs:
        rho = 1.0 / (y @ s)
        left = np.eye(size) - rho * np.outer(s, y)
        inverse = left @ inverse @ left.T + rho * np.outer(s, s)
    return inverse


@pytest.mark.parametrize("size", [1, 3, 5])
def test_direction_equals_the_formula(size: int) -> None:
    machine, history = NumpyMachine(rosenbrock, np.tile([-1.2, 1.0], 4)), History(size)
    for _ in range(8):
        iterate(machine, history, longest=1.0, most=20)
        # Positions of the pairs in the ring buffer, oldest first, before the next iteration adds a pair.
        places = history.newest_first()[::-1]
        pairs = [(machine.vectors[s], machine.vectors[y]) for s, y in map(pair_names, places)]
        gradient = rosenbrock(machine.vectors[X])[1]
        iterate(machine, history, longest=1.0, most=20)
        expected = -inverse_by_formula(pairs, 8) @ gradient
        np.testing.assert_allclose(machine.vectors[DIRECTION], expected, rtol=1e-9, atol=1e-12)
    assert len(history.newest_first()) == size


def test_pairs_are_the_step_and_the_change_of_the_gradient() -> None:
    machine, history = NumpyMachine(booth, np.array([-5.0, 8.0])), History(2)
    before = machine.vectors[X]
    iterate(machine, history, longest=None, most=20)
    after = machine.vectors[X]
    s, y = machine.vectors["step_0"], machine.vectors["change_0"]
    np.testing.assert_array_equal(s, after - before)
    np.testing.assert_allclose(y, booth(after)[1] - booth(before)[1], rtol=1e-12)
    assert history.curvatures[0] == pytest.approx(s @ y)
    assert history.squares[0] == pytest.approx(y @ y)


def test_announced_commands_are_exactly_those_that_occur() -> None:
    machine = NumpyMachine(rosenbrock, np.tile([-1.2, 1.0], 4))
    minimised(machine, History(3))
    uphill = NumpyMachine(lambda x: (float(x @ x), -2.0 * x), np.ones(8))
    iterate(uphill, History(3), longest=1.0, most=3)
    announced = commands(3)
    assert len(announced) == len(set(announced))
    assert set(machine.commands) | set(uphill.commands) == set(announced)


def test_point_and_gradient_are_those_of_the_best_point_after_the_last_evaluation() -> None:
    def shelf(x: Vector) -> tuple[float, Vector]:
        return (-float(x[0]), np.array([-1.0])) if x[0] < 1.5 else (10.0, np.array([1.0]))

    machine, history = NumpyMachine(shelf, np.zeros(1)), History(3)
    did = iterate(machine, history, longest=None, most=2)
    assert machine.values == [0.0, -1.0, 10.0, -1.0]
    assert (did.step, did.evaluations) == (1.0, 4)
    assert (machine.vectors[X], machine.vectors[GRADIENT]) == (1.0, -1.0)


def test_first_step_is_bounded() -> None:
    tried = []

    def objective(x: Vector) -> tuple[float, Vector]:
        tried.append(x.copy())
        return booth(x)

    start = np.array([-5.0, 8.0])
    iterate(NumpyMachine(objective, start), History(2), longest=0.25, most=20)
    assert np.linalg.norm(tried[1] - start) == pytest.approx(0.25)
    tried.clear()
    iterate(NumpyMachine(objective, start), History(2), longest=None, most=20)
    np.testing.assert_allclose(start - tried[1], booth(start)[1])


def test_wrong_gradient_keeps_the_point_and_drops_the_history() -> None:
    machine, history = after_one_iteration()
    machine.objective = lambda x: (float(x @ x), -2.0 * x)
    before = machine.vectors[X].copy()
    did = iterate(machine, history, longest=1.0, most=6)
    assert (did.step, did.evaluations, did.kept, history.newest_first()) == (0.0, 7, False, [])
    np.testing.assert_array_equal(machine.vectors[X], before)


def test_history_with_an_uphill_direction_is_dropped() -> None:
    machine, history = after_one_iteration()
    history.curvatures[0] *= -1.0
    iterate(machine, history, longest=1.0, most=20)
    assert history.pairs == 1


def test_a_pair_without_curvature_is_not_kept() -> None:
    """The gradient of a linear objective does not change."""
    machine, history = NumpyMachine(lambda x: (float(x.sum()), np.ones(2)), np.zeros(2)), History(4)
    did = iterate(machine, history, longest=1.0, most=5)
    assert did.step > 0.0
    assert (did.kept, history.pairs) == (False, 0)


def test_minimum_is_a_fixed_point() -> None:
    did = iterate(NumpyMachine(booth, np.array([1.0, 3.0])), History(4), longest=1.0, most=20)
    assert (did.objective, did.step, did.evaluations) == (0.0, 0.0, 1)


def test_a_nonfinite_objective_is_returned_and_a_nonfinite_gradient_is_refused() -> None:
    machine = NumpyMachine(lambda x: (math.nan, x), np.ones(2))
    assert math.isnan(iterate(machine, History(4), longest=1.0, most=20).objective)
    machine = NumpyMachine(lambda x: (1.0, np.array([np.nan, 1.0])), np.ones(2))
    with pytest.raises(NumericError, match="the objective is 1, but its gradient has the squared length nan"):
        iterate(machine, History(4), longest=1.0, most=20)


def test_both_gradients_of_a_pair_belong_to_one_objective() -> None:
    """The second iteration has another batch, but y is only the change of the gradient that the step causes."""
    machine, history = after_one_iteration()
    machine.objective = lambda x: (booth(x)[0] + 1000.0 * x[0], booth(x)[1] + np.array([1000.0, 0.0]))
    iterate(machine, history, longest=1.0, most=20)
    s, y = machine.vectors["step_1"], machine.vectors["change_1"]
    hessian = np.array([[10.0, 8.0], [8.0, 10.0]])
    np.testing.assert_allclose(y, hessian @ s, rtol=1e-6)


# A line search: the strong Wolfe conditions, the number of evaluations, and brackets.

Curve = Callable[[float], tuple[float, float]]


def quartic(t: float) -> tuple[float, float]:
    """Return value and slope of a function with two valleys."""
    return t**4 - 6.0 * t**2 - t, 4.0 * t**3 - 12.0 * t - 1.0


def bowl(t: float) -> tuple[float, float]:
    return (t - 3.0) ** 2, 2.0 * (t - 3.0)


def cliff(t: float) -> tuple[float, float]:
    """Return value and slope of a function that is not finite beyond 1."""
    return (-math.log(1.0 - t) - 3.0 * t, 1.0 / (1.0 - t) - 3.0) if t < 1.0 else (math.inf, math.nan)


def fall(t: float) -> tuple[float, float]:
    return -t, -1.0


def climb(t: float) -> tuple[float, float]:
    """Return a rising value with a negative slope, as if the gradient were wrong."""
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
def test_found_point_satisfies_both_wolfe_conditions(curve: Curve, first: float) -> None:
    along, seen = noted(curve)
    start = Point(0.0, *curve(0.0))
    found = search(along, start, first, 40)
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
    assert found.step == 2.0 ** (most - 1)
    along, seen = noted(climb)
    assert search(along, Point(0.0, *climb(0.0)), 1.0, most) is None
    assert len(seen) == most


def test_lowest_point_of_the_bracket_is_returned_after_the_last_evaluation() -> None:
    along, seen = noted(lambda t: (-t, -1.0) if t < 4.0 else (10.0, 1.0))
    found = search(along, Point(0.0, 0.0, -1.0), 1.0, 5)
    assert found == min(seen, key=lambda point: point.value)
    assert found.step > 2.0


def test_point_above_the_previous_one_closes_a_bracket() -> None:
    """The point at 2 satisfies the decrease condition, but the slope there is still steep."""
    along, _ = noted(lambda t: {1.0: (-1.0, -1.0), 2.0: (-0.9, -1.0)}.get(t, (-1.05, 0.0)))
    found = search(along, Point(0.0, 0.0, -1.0), 1.0, 9)
    assert 1.0 < found.step < 2.0


def test_point_as_high_as_the_start_does_not_replace_a_lower_point() -> None:
    along, seen = noted(lambda t: {1.0: (0.5, -0.95), 2.0: (1.0, 0.5)}.get(t, (0.45, 0.0)))
    found = search(along, Point(0.0, 1.0, -1.0), 1.0, 9)
    assert (found.value, len(seen)) == (0.45, 3)


@given(*[st.floats(-10, 10)] * 4, st.floats(-5, 5), st.sampled_from([1e-6, 1.0, -1.0, 1e6]))
def test_a_new_step_is_well_inside_the_bracket(a: float, b: float, c: float, d: float, at: float, width: float) -> None:
    step = between(Point(at, a, b), Point(at + width, c, d))
    assert 0.099 <= (step - at) / width <= 0.901


def test_a_search_ends_if_no_number_is_left_in_the_bracket() -> None:
    along, seen = noted(lambda t: (abs(t - 0.7), math.copysign(1.0, t - 0.7)))
    found = search(along, Point(0.0, 0.7, -1.0), 1.0, 1000)
    assert found.step == pytest.approx(0.7, rel=1e-15)
    assert len(seen) < 100
    # No step lowers an objective that rises although its slope is negative.
    assert search(noted(climb)[0], Point(0.0, *climb(0.0)), 1.0, 5000) is None


def test_minimizer_of_a_cubic_is_found() -> None:
    def cubic(t: float) -> Point:
        return Point(t, t**3 - 3.0 * t, 3.0 * t**2 - 3.0)

    assert between(cubic(0.0), cubic(1.9)) == pytest.approx(1.0)
    assert between(cubic(1.9), cubic(0.0)) == pytest.approx(1.0)


@pytest.mark.parametrize("high", [Point(1.0, math.inf, 1.0), Point(1.0, math.nan, 1.0), Point(1.0, 1.0, math.nan)])
def test_bracket_with_an_end_that_is_not_finite_is_halved(high: Point) -> None:
    assert between(Point(0.0, 0.0, -1.0), high) == 0.5
