"""How a subject of the collectives is asked: one line of JSON per request and per answer, over its pipes.

{"do": "start"}                                    -> {"versions": {name: version}}
{"do": "exchange", "nbytes": 1024, "times": 5}     -> {"seconds": [...], "deviation": largest |sum - expected|}

Every exchange adds one float32 vector per worker, :func:`given`, and leaves the sum on every worker. The sums of a
request are looked at once, after the exchanges that are timed. The end of the requests ends the process. No import here
but NumPy: peers read it in environments of their own.
"""

from __future__ import annotations

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
"""Every worker sends to its neighbour alone; all send to a server beside them, which adds and sends back."""

ITEM_BYTES = 4
_PERIOD = 1021
"""A prime number of values, so that a slice at the wrong place shows."""


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
        """Workers, and the server where there is one."""
        return self.workers + (self.collective == PUSH_PULL)

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Exchange:
        """Read what :attr:`arguments` made."""
        collective, workers = arguments
        return cls(collective, int(workers))

    @property
    def arguments(self) -> tuple[str, str]:
        """As words of a command line."""
        return self.collective, str(self.workers)


class ExchangeSubject(Protocol):
    """Whoever exchanges."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Of the library and what it rests on."""
        ...

    def exchange(self, nbytes: int, times: int) -> tuple[list[float], float]:
        """Exchange vectors of ``nbytes`` some times: the seconds of each, and the deviation of the last sums."""
        ...


def given(worker: int, nbytes: int) -> Vector:
    """What a worker has to add: whole numbers small enough for exact sums."""
    return (np.arange(nbytes // ITEM_BYTES) % _PERIOD * (worker + 1)).astype(np.float32)


def deviation(total: Vector, workers: int) -> float:
    """Largest difference between a sum and what it has to be; infinite for one that is no number."""
    expected = given(0, total.nbytes) * np.float32(workers * (workers + 1) // 2)
    largest = float(np.abs(total - expected).max(initial=0.0))
    return largest if np.isfinite(largest) else float("inf")


def serve_exchanges(subject: ExchangeSubject) -> None:
    """Answer requests until they end. Standard output is kept for answers; what else is printed goes to errors."""
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
