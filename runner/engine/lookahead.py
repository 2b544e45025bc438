"""Inputs of the next step, read while a device works on this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from runner.engine.executor import DeviceExecutor
from runner.engine.recording import INPUT
from runner.engine.tensor import Tensor

Array = NDArray[Any]


class Lookahead:
    """What one device reads for the steps of one client, each once.

    from_source: what the device reads for a step. A device that works by itself is brought the next step's while it
    does; a source is a pure function, so that what is read for a step that does not come is only lost time.
    """

    def __init__(self, executor: DeviceExecutor, from_source: Callable[[int], Mapping[Tensor, Array]]) -> None:
        self._executor = executor
        self._from_source = from_source
        self._next: tuple[int, Mapping[Tensor, Array]] | None = None

    def read(self, step: int) -> Mapping[Tensor, Array]:
        """What a step reads, from the source unless it has been read ahead."""
        kept, self._next = self._next, None
        if kept is not None and kept[0] == step:
            return kept[1]
        return self._executor.before_run(step, INPUT, lambda: self._from_source(step))

    def run(self, step: int, feeds: Mapping[Tensor, Array]) -> dict[Tensor, Array]:
        """Run a step of the device; read the next one's inputs while it works."""
        if not self._executor.is_asynchronous:
            return self._executor.run(step, feeds)
        return self._executor.run(step, feeds, lambda: self._look(step + 1))

    def _look(self, step: int) -> None:
        try:
            values = self._from_source(step)
        except Exception:  # noqa: BLE001 - it belongs to the step that reads this, which will meet it again
            return
        self._executor.ahead(values)
        self._next = (step, values)
