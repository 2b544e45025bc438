"""Read-ahead: the inputs of the next step are read while the current step runs, on two levels.

An :class:`~runner.engine.compile.input_slots.InputSource` is a pure function of (split, step, share), so that reading
early, late or twice gives the same examples. On the host, the source of a data set (``runner.data.source``) makes a
share of step s + 1 in a background thread as soon as the share of step s has been read. On a device that works
asynchronously, a GPU, :class:`ReadAhead` takes the next step's inputs from the source and copies them to the device
while the current step runs there. Between the two, :class:`~runner.engine.run.shared_reading.SharedReading` reads a
share once for all devices of a process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from runner.engine.graph.tensor import Tensor
from runner.engine.run.executor import DeviceExecutor
from runner.engine.run.recording import INPUT

Array = NDArray[Any]


class ReadAhead:
    """Reads the inputs of one client for one device, once for each step.

    from_source: reads the device's inputs for a step. Inputs that were read for a step that never runs cost only time.
    """

    def __init__(self, executor: DeviceExecutor, from_source: Callable[[int], Mapping[Tensor, Array]]) -> None:
        self._executor = executor
        self._from_source = from_source
        self._next: tuple[int, Mapping[Tensor, Array]] | None = None

    def read(self, step: int) -> Mapping[Tensor, Array]:
        """Return the inputs of a step, from the source unless they have been read ahead."""
        ahead, self._next = self._next, None
        if ahead is not None and ahead[0] == step:
            return ahead[1]
        return self._executor.before_run(step, INPUT, lambda: self._from_source(step))

    def run(self, step: int, feeds: Mapping[Tensor, Array]) -> dict[Tensor, Array]:
        """Run a step; if the device is asynchronous, read the next step's inputs meanwhile."""
        if not self._executor.is_asynchronous:
            return self._executor.run(step, feeds)
        return self._executor.run(step, feeds, lambda: self._read_ahead(step + 1))

    def _read_ahead(self, step: int) -> None:
        try:
            values = self._from_source(step)
        except Exception:  # noqa: BLE001 - the next step reads these inputs again and raises the error
            return
        self._executor.ahead(values)
        self._next = (step, values)
