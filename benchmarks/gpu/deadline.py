"""A time limit for measurements, which then end with partial results instead of being killed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHORTEST_S = 0.5
"""The shortest timeout for an answer."""


class Deadline:
    """The end of the available time, ``seconds`` from now. clock: returns the time in seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock() + seconds
        self._kept_s = 0.0

    def remaining_s(self) -> float:
        """Return the remaining seconds minus the reserved seconds; negative after the deadline."""
        return self._at - self._clock() - self._kept_s

    def patience_s(self) -> float:
        """Return the timeout for an answer in seconds."""
        return max(SHORTEST_S, self.remaining_s())

    @contextmanager
    def keeping(self, seconds: float) -> Iterator[None]:
        """Reserve some of the time for later measurements while the context is open."""
        self._kept_s += seconds
        try:
            yield
        finally:
            self._kept_s -= seconds
