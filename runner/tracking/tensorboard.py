"""TensorBoard event files in the run directory, written with the optional library tensorboardX."""

import importlib.util
import logging
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.system.record_framing import framed
from runner.tracking.base import DESCRIPTION_TAG, RunInfo, Tracker, Tracking
from runner.tracking.queued import QueuedTracker
from runner.tracking.records import Artifact, Metrics, Params, Record, Tags, now_ms
from runner.tracking.writer import StoreUnavailableError

_log = logging.getLogger(__name__)

FOLDER = "tensorboard"
_LIBRARY = "tensorboardX"
_QUEUE_SIZE = 10_000
_FINISH_TIMEOUT_S = 60.0


@dataclass
class TensorboardTracking(Tracking):
    """Schema of ``tracking: tensorboard``: event files below ``tensorboard`` in each run directory.

    pictures: see :class:`~runner.tracking.base.NoTracking`.
    """

    name: str = "tensorboard"
    pictures: bool = True

    def check(self) -> None:
        if importlib.util.find_spec(_LIBRARY) is None:
            advice = "install it with: pip install 'runner-dataflow[tensorboard]'"
            raise ValueError(f"tracking=tensorboard: {_LIBRARY} is not installed; {advice}")

    def create(self, run_dir: Path) -> Tracker:
        return QueuedTracker(run_dir, TensorboardStore, queue_size=_QUEUE_SIZE, finish_timeout_s=_FINISH_TIMEOUT_S)


class TensorboardStore:
    """The event files of a run: metrics as scalars, parameters as hyper-parameters, and texts.

    The texts are the configuration and the description. Each start of a run writes a new file, which states the
    first step of this start. TensorBoard drops the points of earlier files from this step on.
    """

    def __init__(self, run: RunInfo) -> None:
        self._first_step = run.first_step
        # TensorBoard reads files with "tfevents" in their names. Two starts can occur in one second.
        name = f"events.out.tfevents.{now_ms() // 1000}.{socket.gethostname()}.{run.first_step}"
        self._path = run.run_dir / FOLDER / name
        self._end = 0

    def open(self) -> None:
        """Create the event file. Raises StoreUnavailableError if the file cannot be written."""
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        time_s, started = now_ms() / 1000, SessionLog(status=SessionLog.START)
        version = Event(wall_time=time_s, file_version="brain.Event:2")
        self._append([version, Event(wall_time=time_s, step=self._first_step, session_log=started)])

    def write(self, records: Sequence[Record]) -> None:
        """Add records to the event file; records that TensorBoard cannot show are skipped."""
        from tensorboardX.proto.event_pb2 import Event

        events = []
        for record in records:
            step, time_ms = (record.step, record.time_ms) if isinstance(record, Metrics) else (0, now_ms())
            events += [Event(wall_time=time_ms / 1000, step=step, summary=each) for each in _summaries(record)]
        self._append(events)

    def _append(self, events: Iterable[Any]) -> None:
        """Add events at the end of the file; if this fails, the next call replaces the part that was written."""
        data = b"".join(framed(event.SerializeToString()) for event in events)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.truncate(self._end)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreUnavailableError(f"event file {self._path}: {error}") from error
        self._end += len(data)


def _summaries(record: Record) -> Iterator[Any]:
    """Yield the summaries of a record, as protocol buffers."""
    from tensorboardX.summary import hparams, scalar, text

    match record:
        case Metrics(values=values):
            yield from (scalar(name, value) for name, value in values.items())
        case Params(values):
            yield from hparams(dict(values), {})
        case Tags(values) if DESCRIPTION_TAG in values:
            yield text("description", values[DESCRIPTION_TAG])
        case Artifact(path) if path.endswith(".yaml"):
            try:
                yield text("configuration", f"```yaml\n{Path(path).read_text(encoding='utf-8')}```")
            except (OSError, UnicodeDecodeError) as error:
                _log.warning("%s cannot be read and is missing from the tracking record: %s", path, error)
