"""Line search under the strong Wolfe conditions (Nocedal and Wright 2006, algorithms 3.5 and 3.6)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

DECREASE = 1e-4
"""c1: least accepted decrease, as a fraction of the decrease that the slope at the start predicts (section 3.1)."""

FLATTENING = 0.9
"""c2: steepest accepted slope, as a fraction of the slope at the start; 0.9 for quasi-Newton directions (ibid.)."""

ROUNDING = 1e-6
"""A value that differs from the value v at the start by at most this fraction of v is treated as equal to v: near a
minimum, the difference may be a rounding error (Hager and Zhang 2005, eq. 4.1 and epsilon = 1e-6)."""

GROWTH = 2.0
"""Factor by which a step grows while the objective still decreases."""

MARGIN = 0.1
"""Least distance of a new step from both ends of its bracket, as a fraction of the bracket's length."""


@dataclass(frozen=True)
class Point:
    """The objective and its slope along the direction d at the point start + ``step`` * d."""

    step: float
    value: float
    slope: float


Along = Callable[[float], Point]
"""A function that takes a step and evaluates the objective and its slope there."""


def search(along: Along, start: Point, first: float, most: int) -> Point | None:
    """Return a point that satisfies the strong Wolfe conditions, or the best point if none is found.

    The conditions are f(t) <= f(0) + c1 t f'(0) and |f'(t)| <= c2 |f'(0)|, where t is the step and f the objective. The
    best point satisfies the first condition, or its value equals that of the start within :data:`ROUNDING`. If there is
    no such point, the result is None. start: the point at step 0, with a slope below 0. first: the step that is tried
    first. most: largest number of evaluations. An objective of NaN or infinity counts as too high.
    """
    return _Search(along, start, most).run(first)


class _Search:
    """One search and the number of its remaining evaluations."""

    def __init__(self, along: Along, start: Point, most: int) -> None:
        self._along = along
        self._start = start
        self._left = most

    def run(self, step: float) -> Point | None:
        """Extend the step until a point satisfies both conditions or two points bracket such a point: algorithm 3.5."""
        previous = self._start
        while self._left:
            point = self._evaluate(step)
            if self._too_high(point, previous):
                return self._zoom(previous, point)
            if self._flat(point):
                return point
            if point.slope >= 0.0:
                return self._zoom(point, previous)
            previous, step = point, GROWTH * step
        return self._unless_start(previous)

    def _zoom(self, low: Point, high: Point) -> Point | None:
        """Shrink the bracket from ``low``, the best point so far, where f falls towards ``high``: algorithm 3.6."""
        while self._left:
            step = between(low, high)
            if step in (low.step, high.step):
                break  # no number is left between the ends of the bracket, for example at a kink
            point = self._evaluate(step)
            if self._too_high(point, low):
                high = point
                continue
            if self._flat(point):
                return point
            if point.slope * (high.step - low.step) >= 0.0:
                high = low
            low = point
        return self._unless_start(low)

    def _evaluate(self, step: float) -> Point:
        self._left -= 1
        return self._along(step)

    def _too_high(self, point: Point, than: Point) -> bool:
        """Return whether the decrease at a point is too small or the point is not below ``than``; True for NaN."""
        rounding = ROUNDING * abs(self._start.value)
        if abs(point.value - self._start.value) <= rounding and point.value - than.value <= rounding:
            return False
        enough = point.value <= self._start.value + DECREASE * point.step * self._start.slope
        return not (enough and (than is self._start or point.value < than.value))

    def _flat(self, point: Point) -> bool:
        return abs(point.slope) <= -FLATTENING * self._start.slope

    def _unless_start(self, point: Point) -> Point | None:
        return None if point is self._start else point


def between(low: Point, high: Point) -> float:
    """Return the step that minimizes the cubic with the values and slopes of two points (equation 3.59).

    If the cubic has no minimum, or the step is outside the bracket or within :data:`MARGIN` of an end, return the
    middle.
    """
    middle = 0.5 * (low.step + high.step)
    width = high.step - low.step
    if not all(math.isfinite(each) for each in (high.value, high.slope)):
        return middle
    chord = low.slope + high.slope - 3.0 * (high.value - low.value) / width
    square = chord * chord - low.slope * high.slope
    if not square >= 0.0:
        return middle
    root = math.copysign(math.sqrt(square), width)
    slopes = high.slope - low.slope + 2.0 * root
    if slopes == 0.0:
        return middle
    step = high.step - width * (high.slope + root - chord) / slopes
    inside = MARGIN <= (step - low.step) / width <= 1.0 - MARGIN
    return step if inside else middle
