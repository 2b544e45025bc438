"""TensorBoard event files in the run directory, written with the optional library tensorboardX."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.tracking.base import DESCRIPTION_TAG, RunInfo, Tracker, Tracking
from runner.tracking.queued import QueuedTracker
from runner.tracking.records import Artifact, Metrics, Params, Record, Tags
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
        """Raise ValueError if the library is not installed."""
        if importlib.util.find_spec(_LIBRARY) is None:
            raise ValueError(
                f"tracking=tensorboard: {_LIBRARY} is not installed; install it with: pip install "
                "'runner-dataflow[tensorboard]'"
            )

    def create(self, run_dir: Path) -> Tracker:
        """Return a tracker for the run in this directory."""
        return QueuedTracker(run_dir, TensorboardStore, queue_size=_QUEUE_SIZE, finish_timeout_s=_FINISH_TIMEOUT_S)


class TensorboardStore:
    """The event files of a run: metrics as scalars, parameters as hyper-parameters, and the configuration as text.

    Each start of a run writes another file, in which TensorBoard finds the first step that replaces earlier values.
    """

    def __init__(self, run: RunInfo) -> None:
        self._run = run
        self._writer: Any = None

    def open(self) -> None:
        """Create the event file. Raises StoreUnavailableError."""
        from tensorboardX import SummaryWriter

        folder = self._run.run_dir / FOLDER
        try:
            self._writer = SummaryWriter(str(folder), purge_step=self._run.first_step or None)
        except OSError as error:
            raise StoreUnavailableError(f"event files in {folder}: {error}") from error

    def write(self, records: Sequence[Record]) -> None:
        """Add records to the event file; records for which TensorBoard has no place are skipped."""
        from tensorboardX.summary import hparams

        try:
            for record in records:
                match record:
                    case Metrics(step, time_ms, values):
                        for name, value in values.items():
                            self._writer.add_scalar(name, value, step, time_ms / 1000)
                    case Params(values):
                        for summary in hparams(dict(values), {}):
                            self._writer.file_writer.add_summary(summary)
                    case Tags(values) if DESCRIPTION_TAG in values:
                        self._writer.add_text("description", values[DESCRIPTION_TAG])
                    case Artifact(path, _) if path.endswith(".yaml"):
                        text = Path(path).read_text(encoding="utf-8")
                        self._writer.add_text("configuration", f"```yaml\n{text}```")
            self._writer.flush()
        except OSError as error:
            raise StoreUnavailableError(f"event files in {self._run.run_dir / FOLDER}: {error}") from error
