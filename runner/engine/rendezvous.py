"""Where a Recv meets its Send: keyed, each key exactly once per step of a plan."""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.engine.passes.transfers import sent_tensor
from runner.errors import ClusterError
from runner.kernels.memory import allocate

Array = NDArray[Any]


class Rendezvous(Protocol):
    """The meeting place of one plan's steps as seen by one device.

    A value lies in one piece of memory, the sender's to write and its receivers' to read. The law that makes its reuse
    safe: a sender writes it at most once per step and tells its receivers afterwards, and *a plan is not begun again
    before all its devices have finished it*. Nothing is said of other plans: they have memory of their own, and those
    of launched clients overlap. It holds for what the master feeds and fetches too: a view of such memory is valid
    until its reader has finished the step, or, at the master, until the plan is begun again.
    """

    def outgoing(self, sent: str, nbytes: int) -> NDArray[np.uint8]:
        """The memory in which receivers look for what is sent under a name; the same in every step."""
        ...

    def incoming(self, key: str, source: str, nbytes: int) -> NDArray[np.uint8]:
        """The memory in which the value of a transfer lies from its :meth:`receive` to the end of the step."""
        ...

    def send(self, step: int, key: str, destination: str, value: Array) -> None:
        """Hand over a value, copied only where it was not computed in :meth:`outgoing`; waits for no receiver."""
        ...

    def receive(self, step: int, key: str, source: str) -> Array:
        """Wait for a value; raises ClusterError when the time limit passes or a peer has failed."""
        ...


class LocalRendezvous:
    """A meeting place for devices of one process, each run by a thread of its own."""

    def __init__(self, timeout_s: float = 60.0) -> None:
        self._timeout_s = timeout_s
        self._condition = threading.Condition()
        self._values: dict[tuple[int, str], object] = {}
        self._memory: dict[str, NDArray[np.uint8]] = {}
        self.failure: BaseException | None = None

    def outgoing(self, sent: str, nbytes: int) -> NDArray[np.uint8]:
        """Memory of this process, made the first time that either side asks; raises ValueError for another size."""
        with self._condition:
            if sent not in self._memory:
                self._memory[sent] = allocate(nbytes)
            memory = self._memory[sent]
        if memory.nbytes != nbytes:
            raise ValueError(f"{sent!r} takes {nbytes} bytes, but its place has {memory.nbytes}")
        return memory

    def incoming(self, key: str, source: str, nbytes: int) -> NDArray[np.uint8]:
        """The sender's memory itself."""
        return self.outgoing(sent_tensor(key), nbytes)

    def send(self, step: int, key: str, destination: str, value: Array) -> None:
        """Hand over a value; a second one for the same step and key is an error."""
        memory = self.outgoing(sent_tensor(key), value.nbytes)
        place = memory.view(value.dtype).reshape(value.shape)
        if place.ctypes.data != value.ctypes.data:
            np.copyto(place, value)
        self.hand(step, key, place)

    def receive(self, step: int, key: str, source: str) -> Array:
        """Wait for a value and take it away."""
        value: Array = self.take(step, key, source)
        return value

    def hand(self, step: int, key: str, value: object) -> None:
        """Hand over anything; a second time for the same step and key is an error."""
        with self._condition:
            if (step, key) in self._values:
                raise ClusterError(f"rendezvous: {key!r} was sent twice in step {step}")
            self._values[step, key] = value
            self._condition.notify_all()

    def take(self, step: int, key: str, source: str) -> Any:
        """Wait for what was handed over and take it away."""
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
        """Values sent and not yet received; empty while the plan is not under way."""
        with self._condition:
            return sorted(self._values)
