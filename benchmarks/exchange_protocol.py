"""The protocol of processes that run collectives: that of :mod:`benchmarks.protocol`, with sizes as phases.

{"do": "start"}                                 -> {"versions": {name: version}, "memory_mib": peak}
{"do": "run", "phase": "1024", "times": 5}      -> {"seconds": [...]} of vectors of 1024 bytes

Every worker holds the float32 vector that :func:`given` returns. An exchange leaves the sum of all vectors on every
worker. For each request the sums are checked once, after the timed exchanges; a process with wrong sums ends. This
module needs only NumPy, because peers import it in other environments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.protocol import answer_requests, peak_memory_mib

Vector = NDArray[np.float32]

RING, PUSH_PULL = COLLECTIVES = ("ring", "push-pull")
"""ring: every worker sends only to its neighbour. push-pull: all workers send to a server, which returns the sum."""

ITEM_BYTES = 4
_PERIOD = 1021
"""Number of different values in a vector, a prime, so that a misplaced slice changes the sums."""


@dataclass(frozen=True)
class Exchange:
    """One collective among some workers. The server of a push-pull is not counted as a worker."""

    collective: str
    workers: int

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES or self.workers < 2:
            raise ValueError(
                f"exchange {self.collective!r} of {self.workers} workers: expected one of {', '.join(COLLECTIVES)} and "
                "2 workers or more"
            )

    @property
    def processes(self) -> int:
        """Return the number of processes: the workers, and the server if there is one."""
        return self.workers + (self.collective == PUSH_PULL)

    @classmethod
    def of(cls, arguments: Sequence[str]) -> "Exchange":
        """Return the exchange that :attr:`arguments` describe."""
        collective, workers = arguments
        return cls(collective, int(workers))

    @property
    def arguments(self) -> tuple[str, str]:
        """Return the exchange as arguments of a command line."""
        return self.collective, str(self.workers)


class ExchangeSubject(Protocol):
    """An implementation of one collective."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the library and its dependencies."""

    def exchange(self, nbytes: int, times: int) -> tuple[list[float], float]:
        """Exchange vectors of ``nbytes``; return the seconds of each exchange and the deviation of the last sums."""


def given(worker: int, nbytes: int) -> Vector:
    """Return the vector of a worker: integers small enough for exact float32 sums."""
    return (np.arange(nbytes // ITEM_BYTES) % _PERIOD * (worker + 1)).astype(np.float32)


def deviation(total: Vector, workers: int) -> float:
    """Return the largest absolute error of a sum; infinite if the sum has a NaN."""
    expected = given(0, total.nbytes) * np.float32(workers * (workers + 1) // 2)
    largest = float(np.abs(total - expected).max(initial=0.0))
    return largest if np.isfinite(largest) else float("inf")


def serve_exchanges(subject: ExchangeSubject) -> None:
    """Answer requests until the input ends. Raises ValueError if sums are wrong."""
    answer_requests(lambda request: _answer(subject, request))


def _answer(subject: ExchangeSubject, request: Mapping[str, Any]) -> dict[str, Any]:
    match request["do"]:
        case "start":
            return {"versions": dict(subject.versions), "memory_mib": peak_memory_mib()}
        case "run":
            nbytes = int(request["phase"])
            seconds, off = subject.exchange(nbytes, request["times"])
            if off:
                raise ValueError(f"sums of {nbytes} bytes: largest error {off:g}, expected 0")
            return {"seconds": seconds}
        case other:
            raise ValueError(f"request {other!r}: expected start or run")
