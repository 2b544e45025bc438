"""The delays of a simulation, and the input of its workers, drawn from the description of disturbances.

Every draw is a pure function of the seed, the name of the disturbance, the place and the step.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from statistics import NormalDist

import numpy as np

from runner.engine.events.loop import EventLoop
from runner.engine.simulate.disturbances import EXPONENTIAL, LOGNORMAL, Delay, Disturbances, Failures, Input
from runner.engine.simulate.hardware import expanded
from runner.kernels import philox


class Draws:
    """The delays of a simulation, for each step of each device."""

    def __init__(self, disturbances: Disturbances, seed: int) -> None:
        self._disturbances = disturbances
        self._seed = seed
        self._failed: dict[tuple[str, str], int] = {}
        self._next_s: dict[tuple[str, str], float] = {}

    def input_of(self, place: str) -> Input | None:
        """Return the input of the worker at a place; None if its batches are always ready."""
        found = self._disturbances.input
        return found if found is not None and is_at(found.at, place) else None

    def delay_s(self, place: str, step: int, now: float) -> float:
        """Return the seconds by which the device at a place is late in a step that begins at ``now``.

        Failures are drawn in the order of their times, so ``now`` must not decrease from call to call for a place.
        """
        known = self._disturbances
        delays = (
            _seconds(each, self._stream("delay", name, place), step)
            for name, each in known.delays.items()
            if is_at(each.at, place)
        )
        restarts = (
            self._restart_s(name, each, place, now) for name, each in known.failures.items() if is_at(each.at, place)
        )
        return sum(delays) + sum(restarts)

    def _restart_s(self, name: str, failures: Failures, place: str, now: float) -> float:
        """Return the seconds of the restart after a failure before ``now``, and draw the time of the next failure."""
        known = name, place
        if known not in self._next_s:
            self._next_s[known] = self._until_failure_s(name, failures, place)
        if now < self._next_s[known]:
            return 0.0
        self._failed[known] = self._failed.get(known, 0) + 1
        self._next_s[known] = now + failures.restart_s + self._until_failure_s(name, failures, place)
        return failures.restart_s

    def _until_failure_s(self, name: str, failures: Failures, place: str) -> float:
        number = self._failed.get((name, place), 0)
        _, position = _uniform(self._stream("failure", name, place), number)
        return -3600.0 * failures.mean_hours * math.log1p(-position)

    def _stream(self, kind: str, name: str, place: str) -> philox.Key:
        return philox.key(self._seed, f"{kind}/{name}/{place}")


def is_at(places: str, place: str) -> bool:
    """Return whether ``place`` is one of ``places``, a name that can have a range or a star."""
    return any(fnmatchcase(place, each) for each in expanded(places))


def _seconds(delay: Delay, stream: philox.Key, step: int) -> float:
    """Return the delay in a step of one device."""
    happens, position = _uniform(stream, step)
    if happens >= delay.probability:
        return 0.0
    median = 1e-3 * delay.median_ms
    if delay.distribution == LOGNORMAL:
        return median * math.exp(delay.sigma * NormalDist().inv_cdf(position))
    return median * (-math.log1p(-position) / math.log(2.0) if delay.distribution == EXPONENTIAL else 1.0)


def _uniform(stream: philox.Key, number: int) -> tuple[float, float]:
    """Return two independent uniform draws above 0 and below 1. number: index of the draws in the stream."""
    first, second = philox.uniform(stream, np.zeros(1, np.int64), 2, number)[0]
    return float(first) + 2.0**-33, float(second) + 2.0**-33


@dataclass
class InputReads:
    """The reads of one worker. unit: the unit of the loop that reads one batch after the other. ahead: number of
    batches that can wait for the worker; a read begins when a step takes a batch."""

    loop: EventLoop
    unit: int
    ahead: int
    _read: deque[int] = field(default_factory=deque)

    def take(self, seconds: float, begin: int) -> int:
        """Return the activity that ends when a step has its batch.

        seconds: duration of the read of one batch. begin: the activity before the step.
        """
        if not self._read:
            self._read.extend(self.loop.add(seconds, unit=self.unit) for _ in range(self.ahead))
        taken = self.loop.add(after=[begin, self._read.popleft()])
        self._read.append(self.loop.add(seconds, unit=self.unit, after=[taken]))
        return taken
