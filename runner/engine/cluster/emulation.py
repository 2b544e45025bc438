"""Emulation on one machine: slow links between its processes, and workers that begin steps late."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from runner.engine.cluster.links import Link
from runner.engine.cluster.transport.names import WORKER_ROLE, split_name
from runner.engine.graph.device import DISTRIBUTIONS, LONGEST_DELAY_S
from runner.engine.run.interleaving import standard_normal


@dataclass(frozen=True)
class Stragglers:
    """Emulated slow workers: a random delay for each worker and step.

    distribution: one of :data:`~runner.engine.graph.device.DISTRIBUTIONS`. median_s: median delay before a training
    step in seconds. sigma: standard deviation of the delay's natural logarithm (lognormal). workers: indices of the
    slow workers, None for all. seed: of the random delays.
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
        """Return the delay in seconds before a training step: a pure function of (seed, worker, step)."""
        if self.distribution == "none" or (self.workers is not None and worker not in self.workers):
            return 0.0
        delay = self.median_s
        if self.distribution == "lognormal":
            delay *= math.exp(self.sigma * standard_normal(self.seed, f"straggler/{worker}", step))
        return min(delay, LONGEST_DELAY_S)


@dataclass(frozen=True)
class Emulation:
    """Delays that a session adds to transfers between processes and to training steps; values do not change."""

    link: Link = field(default_factory=Link)
    stragglers: Stragglers = field(default_factory=Stragglers)

    def __str__(self) -> str:
        return f"{self.link}, {self.stragglers}"

    def delay_s(self, process: str, step: int) -> float:
        """Return the delay in seconds before a step of a slowed client; parameter servers have none."""
        role, index = split_name(process)
        return self.stragglers.delay_s(index, step) if role == WORKER_ROLE else 0.0
