"""TensorBoard event files in the run directory, written with the optional library tensorboardX."""

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.tracking.base import DESCRIPTION_TAG, RunInfo, Tracker, Tracking
from runner.tracking.queued import QueuedTracker
from runner.tracking.records import Artifact, End, Metrics, Params, Record, Tags, now_ms
from runner.tracking.writer import StoreUnavailableError

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
            raise ValueError(
                f"tracking=tensorboard: {_LIBRARY} is not installed; install it with: pip install "
                "'runner-dataflow[tensorboard]'"
            )

    def create(self, run_dir: Path) -> Tracker:
        return QueuedTracker(run_dir, TensorboardStore, queue_size=_QUEUE_SIZE, finish_timeout_s=_FINISH_TIMEOUT_S)


class TensorboardStore:
    """The event files of a run: metrics as scalars, parameters as hyper-parameters, and texts.

    The texts are the configuration and the description. Each start of a run writes a new file. If the run is resumed,
    the new file states the first step of this start, and TensorBoard drops earlier files' points from this step on.
    """

    def __init__(self, run: RunInfo) -> None:
        self._run = run
        self._folder = run.run_dir / FOLDER
        self._file: Any = None

    def open(self) -> None:
        """Create the event file. Raises StoreUnavailableError if the file cannot be written."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        first = self._run.first_step
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # The library adds the current second to the name, but two starts of a run can share a second.
            self._file = EventsWriter(str(self._folder / "events"), filename_suffix=f".{first}")
            if first:
                started = SessionLog(status=SessionLog.START)
                self._file.write_event(Event(wall_time=now_ms() / 1000, step=first, session_log=started))
        except OSError as error:
            raise StoreUnavailableError(f"event files in {self._folder}: {error}") from error

    def write(self, records: Sequence[Record]) -> None:
        """Add records to the event file; records that TensorBoard cannot show are skipped."""
        from tensorboardX.proto.event_pb2 import Event

        try:
            for record in records:
                step, time_ms = (record.step, record.time_ms) if isinstance(record, Metrics) else (0, now_ms())
                for summary in _summaries(record):
                    self._file.write_event(Event(wall_time=time_ms / 1000, step=step, summary=summary))
            self._file.flush()
            if any(isinstance(record, End) for record in records):
                self._file.close()
        except OSError as error:
            raise StoreUnavailableError(f"event files in {self._folder}: {error}") from error


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
            yield text("configuration", f"```yaml\n{Path(path).read_text(encoding='utf-8')}```")
