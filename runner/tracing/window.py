"""The updates of a run that are recorded, and the files that come of them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from runner.engine.session import Session
from runner.errors import ClusterError, ResourceError
from runner.files import replace_durably
from runner.tracing.chrome import chrome_trace
from runner.tracing.course import Course, Update
from runner.tracing.summary import summary_table, trace_summary

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TraceFiles:
    """Where a timeline and what it says of critical paths and waits are written."""

    timeline: Path
    summary: Path


def recorded_steps(first: int, total: int, skip: int, count: int) -> range:
    """The steps to record of a process that trains steps ``first``..``total`` - 1.

    ``count`` steps after ``skip``; where the run is too short for that, its last ones.
    """
    begin = max(first, min(first + skip, total - count))
    return range(begin, min(begin + count, total))


class TraceWindow:
    """Records what is done while some updates are made and writes what came of it; told of each by the training loop.

    Of clients that are launched, and go on across updates, that is all that falls between the beginning of the first of
    these updates and the end of the last, whichever run it is of.
    """

    def __init__(
        self,
        session: Session,
        clients: Collection[str],
        steps: range,
        files: TraceFiles,
        announce: Callable[[Path], None],
    ) -> None:
        """clients: that updates are made of. announce: called with the path of each file that was written."""
        self._session = session
        self._clients = clients
        self._steps = steps
        self._files = files
        self._announce = announce
        self._recording = False
        self._open: tuple[int, int] | None = None
        self._updates: list[Update] = []

    def before(self, step: int) -> None:
        """An update is about to begin."""
        # One more where there is one: the first after binding anew is slow, and not what the others are.
        if self._steps and not self._recording and self._steps[0] - 1 <= step <= self._steps[-1]:
            self._session.start_trace(self._clients)
            self._recording = True
        if self._recording:
            self._open = (step, time.monotonic_ns())

    def after(self, step: int) -> None:
        """An update has been made."""
        self._close()
        if self._steps and step == self._steps[-1]:
            self.finish()

    def finish(self, error: BaseException | None = None) -> None:
        """Write what was recorded so far, if anything is being recorded: no further update will be made.

        error: that ended the last update, which is as long as it took until now. Where a worker failed nothing can be
        collected, for what was recorded is with the workers, and ends with them: after an error a line in the log says
        so, else that is raised. Raises ResourceError where a file cannot be written.
        """
        if not self._recording:
            return
        self._recording = False
        self._close()
        try:
            recorded = self._session.stop_trace()
        except ClusterError as lost:
            if error is None:
                raise
            log.warning("no timeline could be collected from the workers: %s", lost)
            return
        # Where a run ends before the first of them what led to it is better than nothing.
        updates = [each for each in self._updates if each.step in self._steps] or self._updates
        timeline = recorded.between(updates[0].begin_ns, updates[-1].end_ns)
        course = Course(timeline)
        summary = trace_summary(course, updates)
        self._write(self._files.timeline, chrome_trace(course, updates))
        self._write(self._files.summary, (json.dumps(summary, indent=1) + "\n").encode())
        log.info("timeline %s, to open at https://ui.perfetto.dev\n%s", self._files.timeline, summary_table(summary))

    def _close(self) -> None:
        if self._open is not None:
            self._updates.append(Update(*self._open, time.monotonic_ns()))
            self._open = None

    def _write(self, path: Path, payload: bytes) -> None:
        try:
            replace_durably(path, payload)
        except OSError as error:
            raise ResourceError(
                f"cannot write {path}: {error.strerror}; free space there, or train with trace=false"
            ) from error
        self._announce(path)
