"""A line for each ended job of a sweep: result, number of ended jobs, and estimated remaining time."""

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from runner.sweeps.outcome import has_ended, monitor_of_outcomes, read_outcome
from runner.sweeps.plan import PlannedJob
from runner.system.text import duration, significant

_EVERY_S = 1.0


@dataclass
class Progress:
    """A report on stderr of each job that ends.

    Within a ``with`` block, a thread checks for ended jobs once a second, because jobs can end in other processes and
    on other machines. Jobs of this process need no thread: call ``report`` after each job.

    before: number of a job -> time of its previous end, as in :func:`has_ended`. earlier: number of jobs that ended
    before ``jobs``. later: number of jobs that follow; None if it is not known. ended: called after one or more jobs
    have ended, in the thread that detected their end.
    """

    jobs: Sequence[PlannedJob]
    sweep_dir: Path
    before: Mapping[int, int | None]
    earlier: int
    later: int | None
    ended: Callable[[], None]

    def __post_init__(self) -> None:
        self._pending = list(self.jobs)
        self._started_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweep-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.report()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self.report()

    def report(self) -> None:
        """Report the jobs that ended since the last call."""
        found = [job for job in self._pending if has_ended(self.sweep_dir / job.directory, self.before[job.number])]
        for job in found:
            self._pending.remove(job)
            print(self._line(job), file=sys.stderr, flush=True)
        if found:
            self.ended()

    def _line(self, job: PlannedJob) -> str:
        outcome = read_outcome(job, self.sweep_dir)
        value, metric = outcome.value, monitor_of_outcomes([outcome]).metric
        result = "" if value is None else f", {metric} {significant(value)}"
        ended = len(self.jobs) - len(self._pending)
        of = left = ""
        if self.later is not None:
            of = f" of {self.earlier + len(self.jobs) + self.later}"
            remaining = len(self._pending) + self.later
            left_s = (time.monotonic() - self._started_s) / ended * remaining
            left = f", about {duration(left_s)} left" if remaining else ""
        return f"{job.label}: {outcome.status}{result}; {self.earlier + ended}{of} jobs ended{left}"
