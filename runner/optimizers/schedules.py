"""Schedules of the learning rate. A schedule gives the factor by which ``optimizer.lr`` is multiplied in each step.

The factor is a pure function of the step and of the lengths of run and epoch, so a resumed run has the same factors.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

from runner.bounds import Bounds, CountOrZero
from runner.errors import require, require_one_of

UNITS = {
    "progress": (1.0, "rising fractions of the run, above 0 and below 1"),
    "epochs": (math.inf, "rising numbers of epochs above 0"),
}
"""Unit of boundaries -> their upper limit, and the text that states their conditions in error messages."""

_REACHED = 1.0 + 1e-12
"""Factor of a position that is compared with a boundary: the quotient 33 / 1.1 is rounded to less than 30."""


@dataclass
class Schedule(ABC):
    """The base class of all schedules: a decay with a linear warm-up.

    warmup_steps: W, the number of steps with a reduced rate. Steps 0 to W - 1 use 1/(W+1), 2/(W+1), ..., W/(W+1) of the
    rate without a warm-up (Goyal et al. 2017, section 2.2). The decay starts at step 0 even with a warm-up, so its
    boundaries are not shifted. warmup_factor: if set, the warm-up is not linear: each of the W steps uses this factor,
    as in He et al. 2016, section 5, with 400 steps at a tenth of the rate.
    """

    name: str = ""
    warmup_steps: CountOrZero = 0
    warmup_factor: Annotated[float, Bounds(0, 1)] | None = None

    def factor(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """Return the factor of the base learning rate at a step.

        step: number of the step, from 0. total_steps: number of steps of the run. steps_per_epoch: number of training
        examples divided by the batch size, not always a whole number.
        """
        return self.warm_up(step) * self.decay(step, total_steps, steps_per_epoch)

    def warm_up(self, step: int) -> float:
        """Return the factor of the warm-up at a step; 1 after the warm-up."""
        if self.warmup_factor is None:
            return min(1.0, (step + 1) / (self.warmup_steps + 1))
        return self.warmup_factor if step < self.warmup_steps else 1.0

    @property
    def goes_by_length(self) -> bool:
        """Whether the rate of a step depends on the number of steps of the run."""
        return False

    @abstractmethod
    def decay(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """Return the factor without the warm-up. The arguments are those of :meth:`factor`."""


@dataclass
class Constant(Schedule):
    """The same rate throughout."""

    name: str = "constant"

    def decay(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        return 1.0


@dataclass
class Step(Schedule):
    """The rate is multiplied by ``multiplier`` at every boundary, from the first step at or after it.

    boundaries: rising positions, in fractions of the run (``unit: progress``) or in epochs (``unit: epochs``).
    Krizhevsky 2014 uses ``boundaries: [0.25, 0.5, 0.75], multiplier: 0.15874`` (250 ** (-1/3)).
    """

    name: str = "step"
    boundaries: list[Annotated[float, Bounds(0, 1e9, above=True)]] = field(default_factory=lambda: [0.5, 0.75])
    unit: str = "progress"
    multiplier: Annotated[float, Bounds(0, 1, above=True)] = 0.1

    def __post_init__(self) -> None:
        require_one_of("schedule.unit", self.unit, UNITS)
        end, expected = UNITS[self.unit]
        rising = all(a < b for a, b in pairwise([0.0, *self.boundaries, end]))
        require(rising, "schedule.boundaries", self.boundaries, expected)

    @property
    def goes_by_length(self) -> bool:
        """True if boundaries are fractions of the run."""
        return self.unit == "progress"

    def decay(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """Return multiplier ** (number of boundaries reached)."""
        position = step / (total_steps if self.unit == "progress" else steps_per_epoch) * _REACHED
        return self.multiplier ** sum(position >= boundary for boundary in self.boundaries)


@dataclass
class Exponential(Schedule):
    """The rate is multiplied by ``multiplier`` over each period of ``every_epochs`` epochs.

    staircase: True if the rate changes only at the end of each period, False if it changes in every step. floor: the
    smallest factor.
    """

    name: str = "exponential"
    multiplier: Annotated[float, Bounds(0, 1, above=True)] = 0.94
    every_epochs: Annotated[float, Bounds(1e-6, 1e9)] = 1.0
    staircase: bool = False
    floor: Annotated[float, Bounds(0, 1)] = 0.0

    def decay(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """Return multiplier ** (epochs / every_epochs), at least ``floor``; a staircase rounds the exponent down."""
        periods = step / steps_per_epoch / self.every_epochs
        if self.staircase:
            periods = math.floor(periods * _REACHED)
        return max(self.floor, float(self.multiplier**periods))


@dataclass
class Inception(Exponential):
    """The staircase of the Inception v3 guide, with a warm-up of C cold epochs and a ramp over W + P further epochs.

    Let a = multiplier ** ((C + W) / P). The factor is 0.1 a in the cold epochs, 0.1 a + (e - C + 1) 0.9 a / (W + P - 1)
    in epoch e = C, ..., C + W + P - 1, and the staircase's factor afterwards. ``warmup_steps`` adds another warm-up.

    cold_epochs, warmup_epochs, every_epochs: C, W and P. overshoot: true for the formula of the published code, which
    rises above the staircase before it joins the staircase, by 10 % with these defaults. false limits the ramp to a.
    """

    name: str = "inception"
    every_epochs: Annotated[float, Bounds(1e-6, 1e9)] = 3.0
    staircase: bool = True
    floor: Annotated[float, Bounds(0, 1)] = 1e-4
    cold_epochs: CountOrZero = 2
    warmup_epochs: CountOrZero = 7
    overshoot: bool = True

    def __post_init__(self) -> None:
        whole = self.warmup_epochs + self.every_epochs
        require(whole > 1, "schedule.warmup_epochs", self.warmup_epochs, f"more than {1 - self.every_epochs:g}")

    def decay(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """Return the factor of the epoch, counted from 0, in which the step begins."""
        before, epoch = self.cold_epochs + self.warmup_epochs, math.floor(step / steps_per_epoch * _REACHED)
        if epoch >= before + self.every_epochs:
            return super().decay(step, total_steps, steps_per_epoch)
        top: float = self.multiplier ** (before / self.every_epochs)
        rise = max(0, epoch - self.cold_epochs + 1) * 0.9 * top / (self.warmup_epochs + self.every_epochs - 1)
        ramp = 0.1 * top + rise
        return max(self.floor, ramp if self.overshoot else min(ramp, top))


@dataclass
class Cosine(Schedule):
    """The rate falls along half a cosine, from 1 to ``final_factor`` (Loshchilov and Hutter 2017, eq. 5)."""

    name: str = "cosine"
    final_factor: Annotated[float, Bounds(0, 1)] = 0.0

    @property
    def goes_by_length(self) -> bool:
        """True: the cosine ends with the run."""
        return True

    def decay(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        """Return the cosine at step / total_steps; ``final_factor`` is reached at the end of the run."""
        progress = min(1.0, step / total_steps)
        return self.final_factor + (1.0 - self.final_factor) * 0.5 * (1.0 + math.cos(math.pi * progress))


_ALL: tuple[type[Schedule], ...] = (Constant, Step, Exponential, Inception, Cosine)
SCHEDULES = {schedule.name: schedule for schedule in _ALL}
"""Schedules by their names in the configuration. To add a schedule, write its class and list it here."""
