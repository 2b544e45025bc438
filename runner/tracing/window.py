"""Record the timeline of some updates of a run and write its files."""

import json
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from runner.engine.run.session import Session
from runner.errors import ClusterError
from runner.system.files import replace_durably, writing
from runner.tracing.timeline_index import TimelineIndex, Update

log = logging.getLogger(__name__)


def recorded_steps(first: int, total: int, skip: int, count: int) -> range:
    """Return the steps to record in a process that trains steps ``first`` to ``total - 1``.

    These are ``count`` steps after the first ``skip`` steps, or the last ``count`` steps if the run is too short.
    """
    begin = max(first, min(first + skip, total - count))
    return range(begin, min(begin + count, total))


@dataclass
class TraceWindow:
    """A recorder that writes the timeline of some updates. The training loop calls it before and after each update.

    All spans that overlap the time from the beginning of the first recorded update to the end of the last update are
    written, even if they belong to a run of a client that extends over several updates. clients: the names of the
    clients to record. timeline, summary: paths of the files. announce: function that is called with the path of each
    written file.
    """

    session: Session
    clients: Collection[str]
    steps: range
    timeline: Path
    summary: Path
    announce: Callable[[Path], None]
    _recording: bool = field(default=False, init=False)
    _open: tuple[int, int] | None = field(default=None, init=False)
    _updates: list[Update] = field(default_factory=list, init=False)

    def before(self, step: int) -> None:
        """Store the start time of an update; start recording at the step before the first step to record."""
        # Recording starts one step early if possible, because the step that starts the recording is slower.
        if self.steps and not self._recording and self.steps[0] - 1 <= step <= self.steps[-1]:
            self.session.start_trace(self.clients)
            self._recording = True
        if self._recording:
            self._open = (step, time.monotonic_ns())

    def after(self, step: int) -> None:
        """Store the end time of an update; write the files after the last step to record."""
        self._close()
        if self.steps and step == self.steps[-1]:
            self.finish()

    def drop(self) -> None:
        """Discard an active recording, because the session that recorded was restarted."""
        self._recording, self._open = False, None
        self._updates.clear()

    def finish(self, error: BaseException | None = None) -> None:
        """Stop recording and write the files; do nothing if no recording is active.

        error: the error that ended the last update. If the workers' recordings cannot be collected, the ClusterError is
        raised, or only logged if ``error`` is given. Raises ResourceError if a file cannot be written.
        """
        if not self._recording:
            return
        self._recording = False
        self._close()
        # Imported here, because few runs record a timeline.
        from runner.tracing.chrome import chrome_trace
        from runner.tracing.summary import summary_table, trace_summary

        try:
            recorded = self.session.stop_trace()
        except ClusterError as lost:
            if error is None:
                raise
            log.warning("no timeline could be collected from the workers: %s", lost)
            return
        # If the run ended before the first step to record, write the updates that were recorded before that step.
        updates = [each for each in self._updates if each.step in self.steps] or self._updates
        index = TimelineIndex(recorded.between(updates[0].begin_ns, updates[-1].end_ns))
        summary = trace_summary(index, updates)
        self._write(self.timeline, chrome_trace(index, updates))
        self._write(self.summary, (json.dumps(summary, indent=1) + "\n").encode())
        log.info("timeline %s, to open at https://ui.perfetto.dev\n%s", self.timeline, summary_table(summary))

    def _close(self) -> None:
        if self._open is not None:
            self._updates.append(Update(*self._open, time.monotonic_ns()))
            self._open = None

    def _write(self, path: Path, payload: bytes) -> None:
        with writing(str(path), "free space there, or train with trace=false"):
            replace_durably(path, payload)
        self.announce(path)
