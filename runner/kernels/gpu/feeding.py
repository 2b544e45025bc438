"""Values on their way to a GPU: through pinned memory, and ahead of their step where somebody knows them by then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.kernels.gpu.runtime import DeviceMemory, Event, Runtime, Stream

Array = NDArray[Any]

_OFTEN = 3
"""Initial values and those of a checkpoint come once; what comes this often comes in every step."""


class PinnedStage:
    """Pinned memory for one value after the other, as large as the largest so far."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._pinned = runtime.pinned(0)
        self._left = runtime.event()

    def bring(self, value: Array, target: int, stream: Stream) -> None:
        """Put a copy of the value to an address on a stream; it may change afterwards."""
        runtime = self._runtime
        runtime.wait_on_host(self._left)
        if self._pinned.nbytes < value.nbytes:
            self._pinned = runtime.pinned(value.nbytes)
        np.copyto(self._pinned[: value.nbytes].view(value.dtype).reshape(value.shape), value)
        runtime.copy(target, self._pinned.ctypes.data, value.nbytes, stream)
        runtime.record(self._left, stream)


@dataclass
class _Landing:
    """Where a value waits on the GPU for its step. arrived, taken: when it is there, and when it may be replaced."""

    stage: PinnedStage
    memory: DeviceMemory
    arrived: Event
    taken: Event
    value: Array | None = None


class GpuWriter:
    """See :class:`~runner.kernels.platform.Writer`.

    allocate: makes memory of the GPU. stage: for values that nobody brought ahead, shared by the writers of a device.
    copies: the stream of transfers from the host. main: the stream of the device's work. Memory to bring values ahead
    is made when the first one is: two places that take turns, so that the next step's value comes over while this
    one's is put in place.
    """

    def __init__(
        self,
        runtime: Runtime,
        allocate: Callable[[int], DeviceMemory],
        target: DeviceMemory,
        stage: PinnedStage,
        copies: Stream,
        main: Stream,
    ) -> None:
        self._runtime = runtime
        self._allocate = allocate
        self._target = target
        self._stage = stage
        self._copies = copies
        self._main = main
        self._brought = 0
        self._landings: list[_Landing] = []

    def __call__(self, value: Array) -> None:
        """Have a value in place for what is called next."""
        if not self._landings or self._landings[0].value is not value:
            self._bring(value)
            return
        landing = self._landings[0]
        self._runtime.wait(self._main, landing.arrived)
        self._runtime.copy(self._target.address, landing.memory.address, value.nbytes, self._main)
        self._runtime.record(landing.taken, self._main)
        landing.value = None
        self._landings.reverse()

    def _bring(self, value: Array) -> None:
        """Straight to its place. What comes again and again has a stage of its own, so that it waits for no other."""
        self._brought += 1
        if self._brought == _OFTEN:
            self._stage = PinnedStage(self._runtime)
        self._stage.bring(value, self._target.address, self._main)

    def ahead(self, value: Array) -> None:
        """Begin to bring over the value that is put in place next; what was brought for another is left."""
        self._landings = self._landings or [self._landing(), self._landing()]
        landing = self._landings[0]
        self._runtime.wait(self._copies, landing.taken)
        landing.stage.bring(value, landing.memory.address, self._copies)
        self._runtime.record(landing.arrived, self._copies)
        landing.value = value

    def _landing(self) -> _Landing:
        runtime = self._runtime
        return _Landing(PinnedStage(runtime), self._allocate(self._target.nbytes), runtime.event(), runtime.event())
