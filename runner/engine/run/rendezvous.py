"""Rendezvous: a recv node receives the value of the send node with the same key. A plan uses a key once per step."""

import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.engine.compile.passes.transfers import sent_tensor
from runner.errors import ClusterError
from runner.kernels.contract import Array, NativeCall
from runner.kernels.memory import allocate

_WAIT_S = 1.0  # longest wait in seconds between two checks for a failure and the time limit


class Rendezvous(Protocol):
    """The rendezvous of one plan's steps as seen by one device.

    Each value has one block of memory, which the sender writes and the receivers read. Two rules make it safe to reuse
    this memory in every step: the sender writes the memory at most once per step and then notifies the receivers, and
    *a plan does not begin a step before all its devices have finished the previous step*. Each plan has separate
    memory, because steps of different plans may overlap after ``step_driver.Clients.launch``. The rules also hold for
    values that the master feeds and fetches. A receiver's view of this memory is valid until the receiver has finished
    the step; the master's view, until the plan begins its next step.
    """

    def outgoing(self, sent: str, nbytes: int) -> NDArray[np.uint8]:
        """Return the memory, the same in every step, from which receivers read the value named ``sent``."""

    def incoming(self, key: str, source: str, nbytes: int) -> NDArray[np.uint8]:
        """Return the memory of a received value; the value stays there from :meth:`receive` to the end of the step."""

    def send(self, step: int, key: str, destination: str, value: Array) -> None:
        """Send a value without waiting for a receiver; first copy it to its :meth:`outgoing` memory if necessary."""

    def receive(self, step: int, key: str, source: str) -> Array:
        """Wait for a value; raises ClusterError if the time limit passes or a peer has failed."""

    def ring(self, key: str) -> Sequence[NativeCall] | None:
        """Return calls with the effect of :meth:`send` for a value in its :meth:`outgoing` memory, or None."""
        return None

    def arrival(self, key: str, source: str) -> Sequence[NativeCall] | None:
        """Return calls with the effect of :meth:`receive` for the value of the current step, or None."""
        return None


class LocalRendezvous(Rendezvous):
    """A rendezvous for the devices of one process, each of which runs in a separate thread."""

    def __init__(self, timeout_s: float = 60.0) -> None:
        self._timeout_s = timeout_s
        self._condition = threading.Condition()
        self._values: dict[tuple[int, str], object] = {}
        self._memory: dict[str, NDArray[np.uint8]] = {}
        self.failure: BaseException | None = None

    def outgoing(self, sent: str, nbytes: int) -> NDArray[np.uint8]:
        """Return memory of this process, allocated by the first call; raises ValueError if a later size differs."""
        with self._condition:
            if sent not in self._memory:
                self._memory[sent] = allocate(nbytes)
            memory = self._memory[sent]
        if memory.nbytes != nbytes:
            raise ValueError(f"{sent!r}: memory of {memory.nbytes} bytes, expected {nbytes}")
        return memory

    def incoming(self, key: str, source: str, nbytes: int) -> NDArray[np.uint8]:
        return self.outgoing(sent_tensor(key), nbytes)

    def send(self, step: int, key: str, destination: str, value: Array) -> None:
        """Send a value; raises ClusterError for a second value with the same step and key."""
        memory = self.outgoing(sent_tensor(key), value.nbytes)
        place = memory.view(value.dtype).reshape(value.shape)
        if place.ctypes.data != value.ctypes.data:
            np.copyto(place, value)
        self.put(step, key, place)

    def receive(self, step: int, key: str, source: str) -> Array:
        value: Array = self.take(step, key, source)
        return value

    def put(self, step: int, key: str, value: object) -> None:
        """Send any object; raises ClusterError for a second object with the same step and key."""
        with self._condition:
            if (step, key) in self._values:
                raise ClusterError(f"rendezvous: {key!r} was sent twice in step {step}")
            self._values[step, key] = value
            self._condition.notify_all()

    def take(self, step: int, key: str, source: str) -> Any:
        """Wait for an object and remove it from the rendezvous."""
        left = self._timeout_s
        with self._condition:
            while (step, key) not in self._values:
                if self.failure is not None:
                    raise ClusterError(
                        f"rendezvous: {key!r} did not arrive from {source}: another device failed: {self.failure}"
                    )
                if left <= 0:
                    raise ClusterError(
                        f"rendezvous: {key!r} of step {step} did not arrive from {source} within {self._timeout_s:g} s"
                    )
                begun, longest_s = time.monotonic(), min(left, _WAIT_S)
                self._condition.wait(longest_s)
                # Count at most ``longest_s`` for each wait, even if the process was suspended meanwhile.
                left -= min(longest_s, time.monotonic() - begun)
            return self._values.pop((step, key))

    def abort(self, failure: BaseException) -> None:
        """Wake all waiting devices after a device has failed, and keep the first failure."""
        with self._condition:
            self.failure = self.failure or failure
            self._condition.notify_all()

    def reset(self) -> BaseException | None:
        """Discard a failed step with its remaining values and return its failure. No device may be waiting."""
        with self._condition:
            failure, self.failure = self.failure, None
            self._values.clear()
            return failure
