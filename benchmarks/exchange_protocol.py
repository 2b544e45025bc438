"""The protocol of subjects of the collectives: one line of JSON per request and per answer, over pipes.

{"do": "start"}                                    -> {"versions": {name: version}}
{"do": "exchange", "nbytes": 1024, "times": 5}     -> {"seconds": [...], "deviation": largest |sum - expected|}

Every exchange adds one float32 vector per worker, :func:`given`, and leaves the sum on every worker. The sums of a
request are checked once, after the timed exchanges. The end of the requests ends the process. This module imports only
NumPy, because peers use it in other environments.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

RING, PUSH_PULL = COLLECTIVES = ("ring", "push-pull")
"""Every worker sends to its neighbour only; all send to a server, which adds and sends back."""

ITEM_BYTES = 4
_PERIOD = 1021
"""A prime number of values, so that a misplaced slice shows."""


@dataclass(frozen=True)
class Exchange:
    """One collective among some workers; the server of a push-pull is not counted."""

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
        """Number of workers and servers."""
        return self.workers + (self.collective == PUSH_PULL)

    @classmethod
    def of(cls, arguments: Sequence[str]) -> "Exchange":
        """Read :attr:`arguments`."""
        collective, workers = arguments
        return cls(collective, int(workers))

    @property
    def arguments(self) -> tuple[str, str]:
        """The exchange as arguments of a command line."""
        return self.collective, str(self.workers)


class ExchangeSubject(Protocol):
    """A subject that exchanges."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the library and its dependencies."""
        ...

    def exchange(self, nbytes: int, times: int) -> tuple[list[float], float]:
        """Exchange vectors of ``nbytes`` some times; return the seconds of each and the deviation of the last sums."""
        ...


def given(worker: int, nbytes: int) -> Vector:
    """Return the vector of a worker: whole numbers small enough for exact sums."""
    return (np.arange(nbytes // ITEM_BYTES) % _PERIOD * (worker + 1)).astype(np.float32)


def deviation(total: Vector, workers: int) -> float:
    """Return the largest deviation of a sum; infinite for NaN."""
    expected = given(0, total.nbytes) * np.float32(workers * (workers + 1) // 2)
    largest = float(np.abs(total - expected).max(initial=0.0))
    return largest if np.isfinite(largest) else float("inf")


def serve_exchanges(subject: ExchangeSubject) -> None:
    """Answer requests until they end. Standard output is reserved for answers; other output goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        print(json.dumps(_answer(subject, json.loads(line))), file=answers, flush=True)


def _answer(subject: ExchangeSubject, request: Mapping[str, Any]) -> dict[str, Any]:
    match request["do"]:
        case "start":
            return {"versions": dict(subject.versions)}
        case "exchange":
            seconds, off = subject.exchange(request["nbytes"], request["times"])
            return {"seconds": seconds, "deviation": off}
        case other:
            raise ValueError(f"request {other!r}: expected start or exchange")
