"""How far to go along a direction: the strong Wolfe conditions (Nocedal and Wright 2006, algorithms 3.5 and 3.6)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

DECREASE = 1e-4
"""c1: the least decrease, as a part of what the slope at the start promises (their section 3.1)."""

FLATTENING = 0.9
"""c2: the steepest slope that is left, as a part of that at the start; 0.9 for quasi-Newton directions (ibidem)."""

GROWTH = 2.0
"""By what a step grows that goes down still."""

MARGIN = 0.1
"""A new step in a bracket keeps at least this part of it away from both of its ends."""


@dataclass(frozen=True)
class Point:
    """The objective and its slope along the direction, ``step`` directions away from the start."""

    step: float
    value: float
    slope: float


Along = Callable[[float], Point]
"""Evaluates the objective at a step."""


def search(along: Along, start: Point, first: float, most: int) -> Point | None:
    """Return a point under the strong Wolfe conditions, the best one seen when ``most`` evaluations find none.

    With t the step and f the objective: f(t) <= f(0) + c1 t f'(0) and \\|f'(t)\\| <= c2 \\|f'(0)\\|. start: at step 0,
    its slope below 0. first: the step that is tried first. What is returned after too many evaluations obeys the
    first condition; None where nothing did. An objective that is not finite counts as too high.
    """
    return _Search(along, start, most).run(first)


class _Search:
    """One search, and how many evaluations it has left."""

    def __init__(self, along: Along, start: Point, most: int) -> None:
        self._along = along
        self._start = start
        self._left = most

    def run(self, step: float) -> Point | None:
        """Go on until a bracket or a point is found: algorithm 3.5."""
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
        """Shrink a bracket: algorithm 3.6. low: the lowest point that decreases enough; its slope points to high."""
        while self._left:
            point = self._evaluate(between(low, high))
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
        """Too little decrease, or none since ``than``. Comparisons with NaN are false, so both are asked to hold."""
        enough = point.value <= self._start.value + DECREASE * point.step * self._start.slope
        return not (enough and (than is self._start or point.value < than.value))

    def _flat(self, point: Point) -> bool:
        return abs(point.slope) <= -FLATTENING * self._start.slope

    def _unless_start(self, point: Point) -> Point | None:
        return None if point is self._start else point


def between(low: Point, high: Point) -> float:
    """Where the cubic through values and slopes of two points is least (their equation 3.59), inside the bracket.

    The middle where it has no such place, or one within :data:`MARGIN` of an end.
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
