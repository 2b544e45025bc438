"""The time that each stage of an input pipeline takes, and the time that training waits for input."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

log = logging.getLogger(__name__)

_WINDOW_S = 10.0
_LEAST_READS = 20
_NOTABLE = 0.2
"""Fraction of the time that training may wait for input before a warning is logged."""


@dataclass(frozen=True)
class StageTime:
    """The work of one stage so far.

    seconds: summed over threads. examples: number of examples that the stage has made.
    """

    seconds: float = 0.0
    examples: int = 0

    @property
    def per_example(self) -> float:
        """Seconds for one example on one thread; 0 without examples."""
        return self.seconds / self.examples if self.examples else 0.0


class StageTimes:
    """A thread-safe record of the times of stages, by name, in the order of the stages."""

    def __init__(self, stages: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._times = {stage: StageTime() for stage in stages}

    @contextmanager
    def of(self, stage: str, examples: int) -> Iterator[None]:
        """Add the duration of the block, which makes ``examples`` examples, to the time of a stage."""
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        with self._lock:
            before = self._times[stage]
            self._times[stage] = StageTime(before.seconds + seconds, before.examples + examples)

    def so_far(self) -> dict[str, StageTime]:
        """Return the times of the stages that have made an example."""
        with self._lock:
            return {stage: found for stage, found in self._times.items() if found.examples}

    def __str__(self) -> str:
        return ", ".join(f"{stage} {1e3 * found.per_example:.3g}" for stage, found in self.so_far().items())


class InputWaits:
    """The time that training waits for batches. If this time is long, one warning names the slowest stage.

    seconds, batches: the time waited so far, and the number of batches that were prepared ahead.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.batches = 0
        self._window: tuple[float, float, int] | None = None  # start of the window; seconds and batches before it
        self._warned = False

    def add(self, begin: float, end: float, times: StageTimes, threads: int) -> None:
        """Add a read of a batch that was prepared ahead. begin, end: times of the read, in seconds of one clock.

        A warning is logged the first time that training waits for more than a fifth of a window of at least 10 seconds
        and 20 reads. times: the times of the stages. threads: the number of threads that prepare batches.
        """
        start, seconds, batches = self._window = self._window or (begin, self.seconds, self.batches)
        self.seconds += end - begin
        self.batches += 1
        elapsed, waited = end - start, self.seconds - seconds
        if elapsed < _WINDOW_S or self.batches - batches < _LEAST_READS:
            return
        self._window = None
        if waited > _NOTABLE * elapsed and not self._warned:
            self._warned = True
            found = times.so_far()
            slowest = max(found, key=lambda stage: found[stage].per_example)
            log.warning(
                "training waited for input in %.0f %% of the last %.0f s; the slowest stage is %s with %.2f ms for "
                "each example on one of data.threads=%d threads; raise data.threads if cores are free",
                *(100 * waited / elapsed, elapsed, slowest, 1e3 * found[slowest].per_example, threads),
            )
