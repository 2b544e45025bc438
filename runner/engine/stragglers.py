"""Workers that are slow to begin a step, emulated: seconds drawn for each worker and step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from runner.engine.device import DISTRIBUTIONS, LONGEST_DELAY_S
from runner.kernels import philox


@dataclass(frozen=True)
class Stragglers:
    """Who is slow, and by how much.

    distribution: one of :data:`~runner.engine.device.DISTRIBUTIONS`. median_s: of the delay before a training step, in
    seconds. sigma: standard deviation of its natural logarithm (lognormal). workers: their numbers, None for all.
    seed: fixes the draws.
    """

    distribution: str = "none"
    median_s: float = 0.0
    sigma: float = 0.0
    workers: tuple[int, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.distribution not in DISTRIBUTIONS:
            raise ValueError(f"distribution {self.distribution!r}: expected one of {', '.join(DISTRIBUTIONS)}")

    def __str__(self) -> str:
        if self.distribution == "none":
            return "no stragglers"
        spread = f", sigma {self.sigma:g}" if self.distribution == "lognormal" else ""
        who = "all workers" if self.workers is None else f"worker {', '.join(map(str, self.workers))}"
        return f"{self.distribution} delay of {who} with median {self.median_s * 1e3:g} ms{spread}"

    def delay_s(self, worker: int, step: int) -> float:
        """Seconds that a worker waits before a training step: a pure function of (seed, worker, step)."""
        if self.distribution == "none" or (self.workers is not None and worker not in self.workers):
            return 0.0
        delay = self.median_s
        if self.distribution == "lognormal":
            delay *= math.exp(self.sigma * standard_normal(self.seed, f"straggler/{worker}", step))
        return min(delay, LONGEST_DELAY_S)


def standard_normal(seed: int, stream: str, step: int) -> float:
    """Draw number ``step`` of a stream, by Box and Muller's method."""
    first, second = philox.uniform(philox.key(seed, stream), np.zeros(1, np.int64), 2, step)[0]
    return math.sqrt(-2.0 * math.log1p(-first)) * math.cos(2.0 * math.pi * second)
