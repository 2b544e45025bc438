"""Emulation of slow links between the processes of one machine, and of slow workers.

A message leaves when the link is free, occupies the link for bytes / bandwidth, and arrives one latency later (Hockney
1994, "The communication challenge for MPP"). Every ordered pair of processes has a separate link, so only messages with
the same sender and receiver delay each other. On a real network, where all messages of a process share the bandwidth of
one network interface, transfers can take longer by a factor of up to the number of peers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from runner.engine.cluster.transport.messages import LONGEST_WAIT_S, WORKER_ROLE, split_name
from runner.engine.graph.device import LONGEST_DELAY_S
from runner.engine.run.interleaving import standard_normal
from runner.errors import ClusterError

BYTES_PER_S_OF_MBIT = 1e6 / 8  # one megabit per second in bytes per second


@dataclass(frozen=True)
class EmulatedLink:
    """Properties of all links. bytes_per_s: None for no limit. Raises ValueError for a value out of range."""

    latency_s: float = 0.0
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.latency_s <= LONGEST_WAIT_S:
            raise ValueError(f"latency_s {self.latency_s!r}: expected 0 to {LONGEST_WAIT_S:g}")
        if self.bytes_per_s is not None and not 0 < self.bytes_per_s < math.inf:
            raise ValueError(f"bytes_per_s {self.bytes_per_s!r}: expected a finite number above 0, or None")

    def __str__(self) -> str:
        if self.bytes_per_s is None:
            rate = "unlimited bandwidth"
        else:
            rate = f"{self.bytes_per_s / BYTES_PER_S_OF_MBIT:g} Mbit/s"
        return f"{rate}, {self.latency_s * 1e3:g} ms"


class Links:
    """The outgoing links of one process and the times at which they become free."""

    def __init__(self, link: EmulatedLink, clock: Callable[[], float]) -> None:
        """clock: returns the time in seconds of a monotonic clock that all processes of this machine share."""
        self._link = link
        self._clock = clock
        self._free: dict[str, float] = {}

    def due(self, destination: str, nbytes: int) -> float:
        """Return the earliest time at which the receiver may deliver a message of ``nbytes`` sent now.

        Raises ClusterError if the time is more than ``LONGEST_WAIT_S`` ahead: the receiver would reject the message.
        """
        now = self._clock()
        occupied_s = 0.0 if self._link.bytes_per_s is None else nbytes / self._link.bytes_per_s
        free = max(now, self._free.get(destination, now)) + occupied_s
        due = free + self._link.latency_s
        if due - now > LONGEST_WAIT_S:
            raise ClusterError(
                f"emulated link to {destination} ({self._link}): a message of {nbytes} bytes would arrive in "
                f"{due - now:.0f} s, expected at most {LONGEST_WAIT_S:g} s; raise cluster.bandwidth_mbit"
            )
        self._free[destination] = free
        return due


@dataclass(frozen=True)
class Stragglers:
    """Emulated slow workers: a constant or random delay before each training step.

    distribution: one of :data:`~runner.engine.graph.device.DISTRIBUTIONS`. median_s: median of the delays in seconds.
    sigma: standard deviation of the logarithm of lognormal delays. workers: indices of slow workers; None for all.
    """

    distribution: str = "none"
    median_s: float = 0.0
    sigma: float = 0.0
    workers: tuple[int, ...] | None = None
    seed: int = 0

    def __str__(self) -> str:
        if self.distribution == "none":
            return "no stragglers"
        spread = f", sigma {self.sigma:g}" if self.distribution == "lognormal" else ""
        slowed = "all workers" if self.workers is None else f"worker {', '.join(map(str, self.workers))}"
        return f"{self.distribution} delay of {slowed} with median {self.median_s * 1e3:g} ms{spread}"

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
    """Delays that a session adds to transfers between processes and to training steps, without changing results."""

    link: EmulatedLink = field(default_factory=EmulatedLink)
    stragglers: Stragglers = field(default_factory=Stragglers)

    def __str__(self) -> str:
        return f"{self.link}, {self.stragglers}"

    def delay_s(self, process: str, step: int) -> float:
        """Return the delay in seconds before a step of a client with ``slowed`` set; always 0 for parameter servers."""
        role, index = split_name(process)
        return self.stragglers.delay_s(index, step) if role == WORKER_ROLE else 0.0
