"""Values on their way to a card: copied over while it computes, put in place when it comes to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.kernels.gpu.runtime import DeviceMemory, Event, Runtime, Stream

Array = NDArray[Any]


@dataclass
class _Stage:
    """One value on its way. pinned: on the host. landed: on the card. arrived, taken: when each may be written anew."""

    pinned: NDArray[np.uint8]
    landed: DeviceMemory
    arrived: Event
    taken: Event
    value: Array | None = None


class CardWriter:
    """See :class:`~runner.kernels.platform.Writer`.

    Two stages take turns: while the value of one is put in place, that of the next step comes over in the other.
    copies: the stream of transfers from the host. main: the stream of the device's work.
    """

    def __init__(self, runtime: Runtime, target: DeviceMemory, copies: Stream, main: Stream) -> None:
        self._runtime = runtime
        self._target = target
        self._copies = copies
        self._main = main
        self._stages = [self._stage(), self._stage()]
        self._turn = 0

    def __call__(self, value: Array) -> None:
        """Have a value in place for what is called next."""
        self.ahead(value)
        stage = self._stages[self._turn]
        stage.value = None
        self._runtime.wait(self._main, stage.arrived)
        self._runtime.copy(self._target.address, stage.landed.address, value.nbytes, self._main)
        self._runtime.record(stage.taken, self._main)
        self._turn = 1 - self._turn

    def ahead(self, value: Array) -> None:
        """Begin to bring over the value that is put in place next; what was brought for another is left."""
        stage = self._stages[self._turn]
        if stage.value is value:
            return
        runtime = self._runtime
        runtime.wait_on_host(stage.arrived)
        np.copyto(stage.pinned[: value.nbytes].view(value.dtype).reshape(value.shape), value)
        runtime.wait(self._copies, stage.taken)
        runtime.copy(stage.landed.address, stage.pinned.ctypes.data, value.nbytes, self._copies)
        runtime.record(stage.arrived, self._copies)
        stage.value = value

    def _stage(self) -> _Stage:
        runtime, nbytes = self._runtime, self._target.nbytes
        return _Stage(runtime.pinned(nbytes), runtime.allocate(nbytes), runtime.event(), runtime.event())
