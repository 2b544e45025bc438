"""What every session can do, and what sessions and workers tell each other of finished steps."""

from __future__ import annotations

import resource
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.engine.conductor import Clients
from runner.engine.timeline import Timeline

Array = NDArray[Any]

PEAK_MEMORY = "peak_memory_bytes"
"""Name of what a worker process says of its memory with every finished step."""

TURN = "turn"
"""Name of what a worker process says of a launched step: how many launched ones it had begun before."""


class Session(Clients, Protocol):
    """Runs clients of one program. Not thread-safe."""

    def start_trace(self, client: str) -> None:
        """Record what every device does in the steps of a client, from the next one on; they take a little longer.

        Raises RunnerError while another trace is recorded, or clients are under way.
        """
        ...

    def stop_trace(self) -> Timeline:
        """Record no more, and return what was recorded.

        Raises RunnerError when nothing is being recorded, or while clients are under way.
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


def peak_rss_bytes() -> int:
    """Largest resident set of this process so far, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def scalar(value: float | int, dtype: str) -> Array:
    """A 0-d array to feed a scalar placeholder with."""
    return np.asarray(value, dtype=dtype)
