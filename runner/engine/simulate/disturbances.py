"""Disturbances of a simulated cluster: delays of devices, failures, and input that is slower than the computation.

The dataclasses are part of the schema of ``cluster.hardware``; see :mod:`runner.engine.simulate.hardware`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from runner.bounds import Count, Fraction, NonNegative, Positive

CONSTANT, EXPONENTIAL, LOGNORMAL = DISTRIBUTIONS = ("constant", "exponential", "lognormal")


@dataclass
class Delay:
    """A delay of the devices at some places in each of their steps, before the first computation.

    at: the places, as in "worker*". distribution, median_ms: distribution of the delays, and its median in
    milliseconds. sigma: standard deviation of the natural logarithm of lognormal delays. probability: probability of a
    delay in a step of a device. source: origin of the numbers.
    """

    at: str
    median_ms: Positive
    distribution: str = CONSTANT
    sigma: NonNegative = 0.0
    probability: Fraction = 1.0
    source: str = ""


@dataclass
class Failures:
    """Failures of the devices at some places, each independent of the others, at a constant rate.

    A device that has failed begins its next step after a restart. at: the places. mean_hours: mean time between two
    failures of a device. restart_s: seconds from the failure to the next step, including repeated work. source: origin
    of the numbers.
    """

    at: str
    mean_hours: Positive
    restart_s: Positive
    source: str = ""


@dataclass
class Input:
    """The input of the workers at some places. at: the places. examples_per_s: examples that each worker reads per
    second. ahead: number of batches that are read before the worker needs them. source: origin of the numbers."""

    at: str
    examples_per_s: Positive
    ahead: Count = 1
    source: str = ""


@dataclass
class Disturbances:
    """The disturbances of a cluster by name; a device can have several of them."""

    delays: dict[str, Delay] = field(default_factory=dict)
    failures: dict[str, Failures] = field(default_factory=dict)
    input: Input | None = None

    @property
    def any(self) -> bool:
        """Whether there is a disturbance, so that the times of equal steps can differ."""
        return bool(self.delays or self.failures or self.input)

    def places(self) -> Iterator[tuple[str, str]]:
        """Yield the key and the value of each ``at``."""
        yield from ((f"delays.{name}.at", each.at) for name, each in self.delays.items())
        yield from ((f"failures.{name}.at", each.at) for name, each in self.failures.items())
        if self.input is not None:
            yield "input.at", self.input.at

    def faults(self) -> Iterator[str]:
        """Yield a line for each invalid value: the key, the value, and the expected value."""
        for name, delay in self.delays.items():
            where = f"delays.{name}"
            if delay.distribution not in DISTRIBUTIONS:
                yield f"{where}.distribution={delay.distribution!r}: expected one of {', '.join(DISTRIBUTIONS)}"
            elif (delay.sigma > 0) != (delay.distribution == LOGNORMAL):
                expected = "above 0" if delay.distribution == LOGNORMAL else f"0 unless distribution={LOGNORMAL}"
                yield f"{where}.sigma={delay.sigma}: expected {expected}"
