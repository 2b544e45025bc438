"""Schedules of the learning rate: factors by which ``optimizer.lr`` is multiplied, step by step.

A schedule is a pure function of the step, so a run that is resumed continues its curve exactly.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import pairwise

from runner.errors import ConfigError

UNITS = {
    "progress": (1.0, "rising fractions of the run, above 0 and below 1"),
    "epochs": (math.inf, "rising numbers of epochs above 0"),
}
"""Units of a boundary: what it must stay below, and both conditions in words."""


@dataclass
class Schedule(ABC):
    """Base of all schedules: a decay, under a linear warm-up.

    warmup_steps: the first W steps, number 0 to W - 1, run at 1/(W+1), 2/(W+1), ... W/(W+1) of the rate that
    the decay alone would give (Goyal et al. 2017, section 2.2); step W is the first at the full rate. The
    decay counts from step 0, so a warm-up does not shift its milestones.
    """

    name: str = ""
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        _require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "0 (off) or more steps")

    def factor(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """Return what the base learning rate is multiplied with.

        step: number of the step, from 0. total_steps: length of the run. steps_per_epoch: steps in which the
        train split is seen once; a fraction when the batch does not divide it.
        """
        warmup = min(1.0, (step + 1) / (self.warmup_steps + 1))
        return warmup * self.decay(step, total_steps, steps_per_epoch)

    @property
    def goes_by_length(self) -> bool:
        """Whether the rate of a step depends on how long the run is to be."""
        return False

    @abstractmethod
    def decay(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """Return the factor without warm-up; arguments as for :meth:`factor`."""


@dataclass
class Constant(Schedule):
    """The same rate throughout."""

    name: str = "constant"

    def decay(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """Return 1."""
        return 1.0


@dataclass
class Step(Schedule):
    """The rate is multiplied by ``multiplier`` at every boundary, from the first step at or after it.

    boundaries: rising positions, in fractions of the run (``unit: progress``) or in epochs (``unit:
    epochs``). Krizhevsky 2014 is ``boundaries: [0.25, 0.5, 0.75], multiplier: 0.15874`` (250 ** (-1/3)).
    """

    name: str = "step"
    boundaries: list[float] = field(default_factory=lambda: [0.5, 0.75])
    unit: str = "progress"
    multiplier: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.unit in UNITS, "unit", repr(self.unit), f"one of {', '.join(UNITS)}")
        end, expected = UNITS[self.unit]
        rising = all(a < b for a, b in pairwise([0.0, *self.boundaries, end]))
        _require(rising, "boundaries", self.boundaries, expected)
        _require_fraction("multiplier", self.multiplier)

    @property
    def goes_by_length(self) -> bool:
        """Where boundaries are fractions of the run."""
        return self.unit == "progress"

    def decay(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """Return multiplier ** (number of boundaries reached)."""
        position = step / (total_steps if self.unit == "progress" else steps_per_epoch)
        return self.multiplier ** sum(position >= boundary for boundary in self.boundaries)


@dataclass
class Exponential(Schedule):
    """The rate is multiplied by ``multiplier`` in every ``every_epochs`` epochs.

    staircase: all at once at the end of each such period; otherwise a little in every step.
    """

    name: str = "exponential"
    multiplier: float = 0.94
    every_epochs: float = 1.0
    staircase: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_fraction("multiplier", self.multiplier)
        _require(0.0 < self.every_epochs < math.inf, "every_epochs", self.every_epochs, "a finite number above 0")

    def decay(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """Return multiplier ** (epochs / every_epochs), the exponent rounded down for a staircase."""
        periods = step / steps_per_epoch / self.every_epochs
        return float(self.multiplier ** (math.floor(periods) if self.staircase else periods))


@dataclass
class Cosine(Schedule):
    """The rate falls along half a cosine, from 1 to ``final_factor`` (Loshchilov and Hutter 2017, eq. 5)."""

    name: str = "cosine"
    final_factor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(0.0 <= self.final_factor <= 1.0, "final_factor", self.final_factor, "a number from 0 to 1")

    @property
    def goes_by_length(self) -> bool:
        """It ends with the run."""
        return True

    def decay(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """Return the cosine at step / total_steps; ``final_factor`` is reached when the run is over."""
        progress = min(1.0, step / total_steps)
        return self.final_factor + (1.0 - self.final_factor) * 0.5 * (1.0 + math.cos(math.pi * progress))


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "step": Step,
    "exponential": Exponential,
    "cosine": Cosine,
}
"""Every value of the ``schedule`` axis. To add one: write its class and list it here."""


def _require(holds: bool, key: str, value: object, expected: str) -> None:
    if not holds:
        raise ConfigError(f"schedule.{key}={value}: expected {expected}")


def _require_fraction(key: str, value: float) -> None:
    _require(0.0 < value <= 1.0, key, value, "a number above 0 and at most 1")
