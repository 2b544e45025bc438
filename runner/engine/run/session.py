"""The interface of all sessions, their common functions, and names of statistics that workers report for each step."""

import resource
from collections.abc import Collection, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from runner.engine.compile.program import SAVE, Client
from runner.engine.graph import Tensor
from runner.engine.run.step_driver import Clients
from runner.engine.run.timeline import Timeline
from runner.errors import RunnerError
from runner.kernels.contract import Array

T = TypeVar("T")

PEAK_MEMORY = "peak_memory_bytes"  # statistic of every finished step: the peak memory of the worker process
TURN = "turn"  # statistic of a launched step: the number of launched steps that the worker began before this one


class Session(Clients, Protocol):
    """A session that runs the clients of one program. Sessions are not thread-safe."""

    def start_trace(self, clients: Collection[str]) -> None:
        """Record the activities of every device in each run of ``clients`` that begins from now on.

        Recorded runs take a little longer. Launched clients that are running continue. Raises RunnerError if another
        trace is active, or if launched clients are running and one of ``clients`` has not been planned yet.
        """

    def stop_trace(self) -> Timeline:
        """Stop recording after each device's step and return the timeline; raises RunnerError without a trace."""

    def sent_bytes(self) -> list[int]:
        """Return the bytes of tensors that each device has sent: workers first, then parameter servers."""

    def peak_memory_bytes(self) -> dict[str, int]:
        """Return the peak resident memory in bytes by process name."""

    def libraries(self) -> dict[str, list[str]]:
        """Return the names of the kernel libraries in use, by device type."""

    def close(self) -> None:
        """Release all resources of the session."""


def require_no_trace(trace: object, clients: Collection[str]) -> None:
    """Raise RunnerError unless ``trace`` is None: only one trace can be active. clients: clients of the new trace."""
    if trace is not None:
        raise RunnerError(
            f"a trace of {', '.join(clients)} was requested during another trace: stop the first trace first"
        )


def required_trace(trace: T | None) -> T:
    """Return the active trace; raises RunnerError if there is none."""
    if trace is None:
        raise RunnerError("no trace is being recorded: start one first")
    return trace


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def scalar(value: float | int, dtype: str) -> Array:
    """Return a 0-d array for a scalar placeholder."""
    return np.asarray(value, dtype=dtype)


def expand_feeds(client: Client, feeds: Mapping[str, Any]) -> dict[Tensor, Any]:
    """Return the value of every fed tensor; raises RunnerError unless ``feeds`` has exactly the client's names."""
    if feeds.keys() != client.feeds.keys():
        raise RunnerError(f"client {client.name!r} was fed {sorted(feeds)}, but takes {sorted(client.feeds)}")
    return {tensor: feeds[name] for name, tensors in client.feeds.items() for tensor in tensors}


def require_launchable(client: Client, running: Collection[str]) -> None:
    """Raise RunnerError unless a client is deferred and not among ``running``, the unfinished launched clients."""
    if not client.deferred:
        raise RunnerError(f"client {client.name!r} was launched, but is not deferred: call run()")
    if client.name in running:
        raise RunnerError(f"client {client.name!r} was launched while running: wait until it has finished")


def require_runnable(client: str, running: Collection[str]) -> None:
    """Raise RunnerError if launched clients are running, unless ``client`` is "save", which only reads variables."""
    if client != SAVE:
        require_synchronized(f"client {client!r} was run", running)


def require_synchronized(what: str, running: Collection[str]) -> None:
    """Raise RunnerError if launched clients are running. what: the attempted action, for the message."""
    if running:
        raise RunnerError(f"{what} before {', '.join(sorted(running))} finished: wait for launched clients first")
