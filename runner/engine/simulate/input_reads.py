"""Reads of a worker's batches on the virtual clock, some batches ahead of the steps that need them."""

from collections import deque
from dataclasses import dataclass, field

from runner.engine.events.loop import EventLoop


@dataclass
class InputReads:
    """The reads of one worker. unit: the unit of the loop that reads one batch after the other. ahead: number of
    batches that can wait for the worker; a read begins when a step takes a batch."""

    loop: EventLoop
    unit: int
    ahead: int
    _read: deque[int] = field(default_factory=deque)

    def take(self, seconds: float, begin: int) -> int:
        """Return the activity that ends when a step has its batch.

        seconds: of the read of a batch. begin: the activity before the step.
        """
        if not self._read:
            self._read.extend(self.loop.add(seconds, unit=self.unit) for _ in range(self.ahead))
        taken = self.loop.add(after=[begin, self._read.popleft()])
        self._read.append(self.loop.add(seconds, unit=self.unit, after=[taken]))
        return taken
