"""Copies of fed values to a GPU through pinned memory. A value known in advance is copied before its step begins."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.kernels.gpu.runtime import DeviceMemory, Event, Runtime, Stream

Array = NDArray[Any]

_OFTEN = 3
"""The number of writes after which a value counts as fed in every step, unlike initial and restored values."""


class PinnedStage:
    """Pinned memory for one value at a time, as large as the largest value so far."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._pinned = runtime.pinned(0)
        self._left = runtime.event()  # after the last copy from the pinned memory

    def upload(self, value: Array, target: int, stream: Stream) -> None:
        """Enqueue a copy of the value to an address. The value may change after the method returns."""
        runtime = self._runtime
        runtime.wait_on_host(self._left)
        if self._pinned.nbytes < value.nbytes:
            self._pinned = runtime.pinned(value.nbytes)
        np.copyto(self._pinned[: value.nbytes].view(value.dtype).reshape(value.shape), value)
        runtime.copy(target, self._pinned.ctypes.data, value.nbytes, stream)
        runtime.record(self._left, stream)


@dataclass
class _Buffer:
    """GPU memory to which a value is copied before its step; the step then copies the value to the target."""

    stage: PinnedStage
    memory: DeviceMemory
    arrived: Event  # after the copy from the host
    taken: Event  # after the copy to the target
    value: Array | None = None


class GpuWriter:
    """See :class:`~runner.kernels.platform.Writer`.

    allocate: allocates GPU memory. stage: pinned memory for values not copied by ``ahead``, shared by all writers of a
    device. copies: the stream of transfers from the host. main: the stream of the device's work. The first call of
    ``ahead`` creates two buffers that alternate, so that the next value is copied while the current value is used.
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
        self._uploads = 0
        self._buffers: list[_Buffer] = []

    def __call__(self, value: Array) -> None:
        """Enqueue a copy of a value to the target: from a buffer if ``ahead`` copied the value, else from the host."""
        if not self._buffers or self._buffers[0].value is not value:
            self._upload(value)
            return
        buffer = self._buffers[0]
        self._runtime.wait(self._main, buffer.arrived)
        self._runtime.copy(self._target.address, buffer.memory.address, value.nbytes, self._main)
        self._runtime.record(buffer.taken, self._main)
        buffer.value = None
        self._buffers.reverse()

    def _upload(self, value: Array) -> None:
        """Copy a value directly to the target. Values fed in every step get a separate stage, to avoid waiting."""
        self._uploads += 1
        if self._uploads == _OFTEN:
            self._stage = PinnedStage(self._runtime)
        self._stage.upload(value, self._target.address, self._main)

    def ahead(self, value: Array) -> None:
        """Start to copy the next value to a buffer, where it replaces an earlier value that was never used."""
        self._buffers = self._buffers or [self._buffer(), self._buffer()]
        buffer = self._buffers[0]
        self._runtime.wait(self._copies, buffer.taken)
        buffer.stage.upload(value, buffer.memory.address, self._copies)
        self._runtime.record(buffer.arrived, self._copies)
        buffer.value = value

    def _buffer(self) -> _Buffer:
        runtime = self._runtime
        return _Buffer(PinnedStage(runtime), self._allocate(self._target.nbytes), runtime.event(), runtime.event())
