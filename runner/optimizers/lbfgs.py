"""L-BFGS (Nocedal 1980; Nocedal and Wright 2006, algorithms 7.4 and 7.5), as commands to a :class:`VectorMachine`.

Sandblaster uses L-BFGS for large fixed batches (Dean et al. 2012, section 4.2).

The history holds pairs of a step s and the change y of the gradient over this step. The objective may change between
iterations, for example with the batch. Each iteration therefore begins by evaluating its own objective, so that y is a
difference of two gradients of the same objective (Schraudolph, Yu and Guenter 2007, section 3.2.1).
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from runner.bounds import Count, Positive, SmallCount
from runner.engine.graph import Expr
from runner.errors import ConfigError, NumericError, require
from runner.optimizers.base import Optimizer, Rule
from runner.optimizers.line_search import Point, search

X, GRADIENT, DIRECTION = "x", "gradient", "direction"
START, START_GRADIENT = "start", "start_gradient"
"""Names of two vectors: during a line search, the start point and the gradient there; after the search, s and y."""

WORKING = (GRADIENT, DIRECTION, START, START_GRADIENT)
"""The vectors that are used only within one iteration, and therefore not saved."""

CURVATURE = 1e-4
"""A pair is kept if s'y > CURVATURE * |s'g|, where g is the gradient at the start. L-BFGS-B has a similar test (Zhu et
al. 1997). This test excludes mere rounding errors: under the strong Wolfe conditions, s'y >= 0.1 |s'g|."""


@dataclass
class Lbfgs(Optimizer):
    """L-BFGS (Nocedal 1980) with a line search, for large batches; an iteration is one update, on one batch.

    history: largest number of pairs (s, y) that are kept, where s is a step and y the change of the gradient over it;
    each pair has two values per parameter. max_evaluations: largest number of evaluations of the batch in a line
    search. One more evaluation precedes the search, and another follows unless the best point was evaluated last.

    lr must be 1: the line search finds the length of a step. clip_norm: largest length of the first trial step while
    the history is empty and the direction is the negative gradient; the line search may go further. weight_decay: the
    objective, but not the reported loss, includes the penalty weight_decay / 2 * w'w for each decayed variable w. Saved
    variables: the pairs, named "conv1/weights/step_0" and "conv1/weights/change_0", and scalars named "lbfgs/...".
    """

    line_search: ClassVar[bool] = True

    name: str = "lbfgs"
    lr: Positive = 1.0
    history: SmallCount = 10
    max_evaluations: Count = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lr == 1.0, "optimizer.lr", self.lr, "1.0; the line search finds the length of a step")
        decoupled, scaling, average = self.decoupled_weight_decay, self.batch_scaling, self.average
        rules, unscaled = self.rules, "rate=none and weight_decay=false; lr is always 1"
        require(not decoupled, "optimizer.decoupled_weight_decay", "true", "false; the decay is part of the objective")
        require(not rules, "optimizer.rules", rules, "no rules; the line search finds one step for all variables")
        require(not scaling.active, "optimizer.batch_scaling", scaling, unscaled)
        require(not self.lazy, "optimizer.lazy", "true", "false; L-BFGS updates all rows of a table")
        require(average.decay is None, "optimizer.average.decay", average.decay, "null; L-BFGS keeps no averages")

    @property
    def against_divergence(self) -> str:
        """Advice for losses that are no longer finite: the settings that affect the first step and the objective."""
        clip = "set" if self.clip_norm is None else "lower"
        return f"{clip} optimizer.clip_norm, which bounds the first step, or raise optimizer.weight_decay"

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        """Raise ConfigError: one gradient does not determine the update."""
        raise ConfigError(
            "optimizer=lbfgs: its step needs more than one gradient; use it with parallelism=single or "
            "parallelism=sandblaster, which evaluate the batch along a line"
        )


@dataclass(frozen=True)
class Dot:
    """The command that returns a'b, where a and b are names of vectors, as in all commands."""

    a: str
    b: str

    def __str__(self) -> str:
        return f"dot {self.a} {self.b}"


@dataclass(frozen=True)
class Scale:
    """The command ``into <- factor * a``."""

    into: str
    a: str

    def __str__(self) -> str:
        return f"scale {self.into} {self.a}"


@dataclass(frozen=True)
class Add:
    """The command that sets into <- a + factor * b."""

    into: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"add {self.into} {self.a} {self.b}"


Command = Dot | Scale | Add
"""A command without its factor, which is an argument of each call."""


class VectorMachine(Protocol):
    """An object that holds vectors of one length by name, among them the point "x" and the objective's "gradient"."""

    def dot(self, a: str, b: str) -> float:
        """Return a'b."""

    def scale(self, into: str, factor: float, a: str) -> None:
        """Set into <- factor * a."""

    def add(self, into: str, a: str, factor: float, b: str) -> None:
        """Set into <- a + factor * b; ``into`` may be ``a`` or ``b``."""

    def evaluate(self) -> float:
        """Return the objective at "x" and set "gradient" to its gradient there."""


def pair_names(place: int) -> tuple[str, str]:
    """Return the names of the vectors s and y of the pair at place number ``place`` of the :class:`History`."""
    return f"step_{place}", f"change_{place}"


@dataclass
class History:
    """Scalars of the newest pairs (s, y), whose vectors are in places 0 to ``size`` - 1; the oldest place is reused.

    pairs: number of pairs added since :meth:`forget`. curvatures, squares: s'y and y'y of the pair at each place.
    """

    size: int
    pairs: int = 0
    curvatures: list[float] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        for numbers in (self.curvatures, self.squares):
            numbers += [0.0] * (self.size - len(numbers))

    def newest_first(self) -> list[int]:
        """Return the places that hold a pair, newest first."""
        return [number % self.size for number in reversed(range(max(0, self.pairs - self.size), self.pairs))]

    def keep(self, curvature: float, square: float) -> int:
        """Add a pair, which replaces the oldest pair if every place holds one; return its place."""
        place = self.pairs % self.size
        self.curvatures[place], self.squares[place] = curvature, square
        self.pairs += 1
        return place

    def forget(self) -> None:
        """Drop all pairs."""
        self.pairs = 0


@dataclass(frozen=True)
class Iteration:
    """The outcome of one iteration.

    objective: value at the start. step: distance that "x" moved, in multiples of the direction; 0 if no lower point
    was found. evaluations: number of evaluations. kept: whether the pair of this step was added to the history.
    """

    objective: float
    step: float
    evaluations: int
    kept: bool


def commands(history: int) -> list[Command]:
    """Return all commands of :func:`iterate` except evaluations, for a history of ``history`` pairs."""
    found: list[Command] = [Dot(GRADIENT, GRADIENT), Dot(GRADIENT, DIRECTION), Dot(START, START_GRADIENT)]
    found += [Dot(START_GRADIENT, START_GRADIENT), Scale(DIRECTION, GRADIENT), Scale(DIRECTION, DIRECTION)]
    found += [Scale(START, X), Scale(START_GRADIENT, GRADIENT), Scale(X, START), Add(X, START, DIRECTION)]
    found += [Add(START, X, START), Add(START_GRADIENT, GRADIENT, START_GRADIENT)]
    for place in range(history):
        s, y = pair_names(place)
        found += [Dot(s, DIRECTION), Dot(y, DIRECTION), Add(DIRECTION, DIRECTION, s), Add(DIRECTION, DIRECTION, y)]
        found += [Scale(s, START), Scale(y, START_GRADIENT)]
    return found


def iterate(machine: VectorMachine, history: History, *, longest: float | None, most: int) -> Iteration:
    """Move "x" by one step along the quasi-Newton direction, and add the pair of this step to the history.

    longest: largest length of the first trial step while the history is empty and the direction is -g, where g is the
    gradient; None for no limit. most: largest number of evaluations in the search. One more evaluation precedes the
    search. Another follows unless the best point was evaluated last, so that "gradient" is the gradient at "x". If the
    search finds no lower point, "x" keeps its value and all pairs are dropped. If the objective is not finite, "x" and
    the history do not change. Raises NumericError if the objective is finite and the gradient is not.
    """
    objective = machine.evaluate()
    if not math.isfinite(objective):
        return Iteration(objective, 0.0, 1, kept=False)
    square = machine.dot(GRADIENT, GRADIENT)
    if not math.isfinite(square):
        raise NumericError(f"the objective is {objective:g}, but its gradient has the squared length {square}")
    if square == 0.0:
        return Iteration(objective, 0.0, 1, kept=False)
    slope = _find_direction(machine, history, square)
    first = 1.0 if history.pairs or longest is None else min(1.0, longest / math.sqrt(square))
    found, evaluations = _search(machine, Point(0.0, objective, slope), first, most)
    if found is None:
        machine.scale(X, 1.0, START)
        history.forget()
        return Iteration(objective, 0.0, 1 + evaluations, kept=False)
    kept = _remember(machine, history, -CURVATURE * found.step * slope)
    return Iteration(objective, found.step, 1 + evaluations, kept)


def _find_direction(machine: VectorMachine, history: History, square: float) -> float:
    """Set "direction" to the quasi-Newton direction or, if its slope is not below 0, to -g; return the slope."""
    _apply_inverse(machine, history)
    slope = machine.dot(GRADIENT, DIRECTION)
    if slope < 0.0:
        return slope
    history.forget()
    machine.scale(DIRECTION, -1.0, GRADIENT)
    return -square


def _apply_inverse(machine: VectorMachine, history: History) -> None:
    """Set "direction" to -H g by the two loops of algorithm 7.4, with H0 = s'y / y'y of the newest pair (eq. 7.20)."""
    machine.scale(DIRECTION, -1.0, GRADIENT)
    places = history.newest_first()
    projections = {}
    for place in places:
        s, y = pair_names(place)
        projections[place] = machine.dot(s, DIRECTION) / history.curvatures[place]
        machine.add(DIRECTION, DIRECTION, -projections[place], y)
    if places:
        machine.scale(DIRECTION, history.curvatures[places[0]] / history.squares[places[0]], DIRECTION)
    for place in reversed(places):
        s, y = pair_names(place)
        correction = machine.dot(y, DIRECTION) / history.curvatures[place]
        machine.add(DIRECTION, DIRECTION, projections[place] - correction, s)


def _search(machine: VectorMachine, start: Point, first: float, most: int) -> tuple[Point | None, int]:
    """Search along "direction"; move "x" and "gradient" to the point found. Return (point, number of evaluations)."""
    machine.scale(START, 1.0, X)
    machine.scale(START_GRADIENT, 1.0, GRADIENT)
    seen = []

    def along(step: float) -> Point:
        machine.add(X, START, step, DIRECTION)
        value = machine.evaluate()
        slope = machine.dot(GRADIENT, DIRECTION)
        seen.append(Point(step, value, slope))
        return seen[-1]

    found = search(along, start, first, most)
    if found is not None and found is not seen[-1]:
        along(found.step)
    return found, len(seen)


def _remember(machine: VectorMachine, history: History, least: float) -> bool:
    """Add the pair of a step to the history if s'y is greater than ``least``; return whether it was added."""
    machine.add(START, X, -1.0, START)
    machine.add(START_GRADIENT, GRADIENT, -1.0, START_GRADIENT)
    curvature = machine.dot(START, START_GRADIENT)
    if not curvature > least:
        return False
    s, y = pair_names(history.keep(curvature, machine.dot(START_GRADIENT, START_GRADIENT)))
    machine.scale(s, 1.0, START)
    machine.scale(y, 1.0, START_GRADIENT)
    return True
