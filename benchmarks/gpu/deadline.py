"""How long measuring may still take: it ends in time, with what was found until then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHORTEST_S = 0.5
"""What somebody who is waited for is given at least."""


class Deadline:
    """A point in time. seconds: from now on. clock: seconds that pass."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock() + seconds
        self._kept_s = 0.0

    def remaining_s(self) -> float:
        """Seconds there are; negative when it has passed."""
        return self._at - self._clock() - self._kept_s

    def patience_s(self) -> float:
        """How long to wait for an answer."""
        return max(SHORTEST_S, self.remaining_s())

    @contextmanager
    def keeping(self, seconds: float) -> Iterator[None]:
        """Keep some of the time for what comes after."""
        self._kept_s += seconds
        try:
            yield
        finally:
            self._kept_s -= seconds
