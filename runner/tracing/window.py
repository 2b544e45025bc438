"""The steps of a run that are recorded, and the files that come of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runner.engine.session import Session
from runner.errors import ResourceError
from runner.files import replace_durably
from runner.tracing.chrome import chrome_trace
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
    """Records some steps of the client ``train`` and writes what came of it; told of every step by the training loop.

    announce: called with the path of each file that was written.
    """

    def __init__(self, session: Session, steps: range, files: TraceFiles, announce: Callable[[Path], None]) -> None:
        self._session = session
        self._steps = steps
        self._files = files
        self._announce = announce
        self._recording = False

    def before(self, step: int) -> None:
        """A step is about to begin."""
        # One step more where there is one: the first after binding anew is slow, and not what the others are.
        if self._steps and not self._recording and self._steps[0] - 1 <= step <= self._steps[-1]:
            self._session.start_trace("train")
            self._recording = True

    def after(self, step: int) -> None:
        """A step has ended well."""
        if self._steps and step == self._steps[-1]:
            self.finish()

    def finish(self) -> None:
        """Write what was recorded so far, if anything is being recorded: no further step will come.

        Raises ResourceError where a file cannot be written.
        """
        if not self._recording:
            return
        self._recording = False
        timeline = self._session.stop_trace().within(self._steps)
        summary = trace_summary(timeline)
        self._write(self._files.timeline, chrome_trace(timeline))
        self._write(self._files.summary, (json.dumps(summary, indent=1) + "\n").encode())
        log.info("timeline %s, to open at https://ui.perfetto.dev\n%s", self._files.timeline, summary_table(summary))

    def _write(self, path: Path, payload: bytes) -> None:
        try:
            replace_durably(path, payload)
        except OSError as error:
            raise ResourceError(
                f"cannot write {path}: {error.strerror}; free space there, or train with trace=false"
            ) from error
        self._announce(path)
