"""Where a Recv meets its Send: keyed, each key exactly once per step."""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

from numpy.typing import NDArray

from runner.errors import ClusterError

Array = NDArray[Any]


class Rendezvous(Protocol):
    """One step's meeting place as seen by one device."""

    def send(self, step: int, key: str, destination: str, value: Array) -> None:
        """Hand over a value; returns without waiting for the receiver."""
        ...

    def receive(self, step: int, key: str, source: str) -> Array:
        """Wait for a value; raises ClusterError when the time limit passes or a peer has failed."""
        ...


class LocalRendezvous:
    """A meeting place for devices of one process, each run by a thread of its own."""

    def __init__(self, timeout_s: float = 60.0) -> None:
        self._timeout_s = timeout_s
        self._condition = threading.Condition()
        self._values: dict[tuple[int, str], Array] = {}
        self.failure: BaseException | None = None

    def send(self, step: int, key: str, destination: str, value: Array) -> None:
        """Hand over a copy of a value; a second one for the same step and key is an error."""
        with self._condition:
            if (step, key) in self._values:
                raise ClusterError(f"rendezvous: {key!r} was sent twice in step {step}")
            # The sender goes on to use the memory for other values.
            self._values[step, key] = value.copy()
            self._condition.notify_all()

    def receive(self, step: int, key: str, source: str) -> Array:
        """Wait for a value and take it away."""
        deadline = time.monotonic() + self._timeout_s
        with self._condition:
            while (step, key) not in self._values:
                if self.failure is not None:
                    raise ClusterError(f"rendezvous: a peer failed while {key!r} was awaited: {self.failure}")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ClusterError(
                        f"rendezvous: {key!r} of step {step} did not arrive from {source} within {self._timeout_s:g} s"
                    )
                self._condition.wait(left)
            return self._values.pop((step, key))

    def abort(self, failure: BaseException) -> None:
        """Wake everyone who waits: a device has failed and its sends will not come. The first failure is kept."""
        with self._condition:
            self.failure = self.failure or failure
            self._condition.notify_all()

    def reset(self) -> BaseException | None:
        """Forget a failed step, its failure and the values left over; return the failure. No device may be waiting."""
        with self._condition:
            failure, self.failure = self.failure, None
            self._values.clear()
            return failure

    @property
    def pending(self) -> list[tuple[int, str]]:
        """Values sent and not yet received; empty between steps."""
        with self._condition:
            return sorted(self._values)
