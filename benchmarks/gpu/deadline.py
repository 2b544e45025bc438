"""The time that is left for measuring, so that it ends in time with partial results."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHORTEST_S = 0.5
"""Shortest timeout of an answer."""


class Deadline:
    """A point in time. seconds: from now. clock: returns the time in seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock() + seconds
        self._kept_s = 0.0

    def remaining_s(self) -> float:
        """Remaining seconds; negative after the deadline."""
        return self._at - self._clock() - self._kept_s

    def patience_s(self) -> float:
        """Return the timeout of an answer."""
        return max(SHORTEST_S, self.remaining_s())

    @contextmanager
    def keeping(self, seconds: float) -> Iterator[None]:
        """Reserve some of the time for later measurements."""
        self._kept_s += seconds
        try:
            yield
        finally:
            self._kept_s -= seconds
