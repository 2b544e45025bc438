"""What every session can do, and what sessions and workers tell each other of finished steps."""

from __future__ import annotations

import resource
from collections.abc import Collection
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from runner.engine.conductor import Clients
from runner.engine.timeline import Timeline
from runner.errors import RunnerError

Array = NDArray[Any]
T = TypeVar("T")

PEAK_MEMORY = "peak_memory_bytes"
"""Name of what a worker process says of its memory with every finished step."""

TURN = "turn"
"""Name of what a worker process says of a launched step: how many launched ones it had begun before."""


class Session(Clients, Protocol):
    """Runs clients of one program. Not thread-safe."""

    def start_trace(self, clients: Collection[str]) -> None:
        """Record what every device does in runs of some clients, from the next on that it begins.

        They take a little longer. Launched clients may be under way, and stay so. Raises RunnerError while another
        trace is recorded, and, where clients are under way, for one that has not been planned before.
        """
        ...

    def stop_trace(self) -> Timeline:
        """Record no more, and return what was recorded; what is under way on a device comes to its end there before.

        Raises RunnerError when nothing is being recorded.
        """
        ...

    def sent_bytes(self) -> list[int]:
        """Bytes of tensors each device has sent so far, in their order: workers, then parameter servers."""
        ...

    def peak_memory_bytes(self) -> dict[str, int]:
        """Peak resident memory by process name."""
        ...

    def libraries(self) -> dict[str, list[str]]:
        """Kernel libraries in use by device type."""
        ...

    def close(self) -> None:
        """Release everything the session holds."""
        ...


def require_no_trace(trace: object, clients: Collection[str]) -> None:
    """Raise RunnerError where a trace is asked for while one, ``trace``, is being recorded."""
    if trace is not None:
        raise RunnerError(
            f"a trace of {', '.join(clients)} was asked for while another is being recorded: stop that one"
        )


def required_trace(trace: T | None) -> T:
    """The trace that is being recorded; raises RunnerError where none is."""
    if trace is None:
        raise RunnerError("no trace is being recorded: start one first")
    return trace


def peak_rss_bytes() -> int:
    """Largest resident set of this process so far, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def scalar(value: float | int, dtype: str) -> Array:
    """A 0-d array to feed a scalar placeholder with."""
    return np.asarray(value, dtype=dtype)
