"""Write checkpoints in a second thread, while training continues."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

COST = 50  # the time between two periodic saves is at least this many times the duration of a save


class BackgroundSaver:
    """A thread that writes one checkpoint at a time. The caller must not change the variables that are written."""

    def __init__(self, every_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """every_s: seconds between periodic saves; None for no periodic saves. clock: returns seconds."""
        self._every_s = every_s
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: Future[Path] | None = None
        self._next = clock() + (every_s or 0.0)

    @property
    def is_due(self) -> bool:
        """Whether a periodic save is due: no save runs, and the time set by ``every_s`` and ``COST`` has passed."""
        idle = self._running is None or self._running.done()
        return self._every_s is not None and idle and self._clock() >= self._next

    def start(self, write: Callable[[], Path], begun: float) -> None:
        """Wait for the running save, then begin ``write`` in the thread.

        begun: the time by the clock before the variables were copied, because copying is a part of the save. Raises the
        error of the running save.
        """
        self.finish()
        self._running = self._thread.submit(self._timed, write, begun)

    def check(self) -> None:
        """Raise the error of a save that has failed. Does not wait."""
        if self._running is not None and self._running.done():
            self.finish()

    def finish(self) -> Path | None:
        """Wait for the running save, if any; return the path of its checkpoint. Raises the error of the save."""
        running, self._running = self._running, None
        return None if running is None else running.result()

    def close(self) -> None:
        """Wait for the running save and end the thread. Raises the error of the save."""
        try:
            self.finish()
        finally:
            self._thread.shutdown()

    def _timed(self, write: Callable[[], Path], begun: float) -> Path:
        path = write()
        ended = self._clock()
        self._next = ended + max(self._every_s or 0.0, COST * (ended - begun))
        return path
