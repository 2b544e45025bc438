"""A tracker that writes records to a store of any kind on a separate thread."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runner.tracking.base import STATUSES, RunInfo, Tracker
from runner.tracking.mlflow_client import flat_params, safe_tags
from runner.tracking.records import Artifact, DataSplit, End, ExportedModel, Metrics, Params, Record, Tags, now_ms
from runner.tracking.spool import SPOOL_FILE, Spool
from runner.tracking.system_monitor import SystemMonitor
from runner.tracking.writer import BackgroundWriter, Store


class QueuedTracker(Tracker):
    """A tracker of a run; :mod:`runner.tracking.writer` writes its records on a separate thread and handles failures.

    store: function that returns the store for a run. queue_size: largest number of records held in memory.
    finish_timeout_s: longest wait at the end of a run. system_every_s: time between samples of CPU and memory, or None.
    """

    def __init__(
        self,
        run_dir: Path,
        store: Callable[[RunInfo], Store],
        *,
        queue_size: int,
        finish_timeout_s: float,
        system_every_s: float | None = None,
    ) -> None:
        self._spool = Spool(run_dir / SPOOL_FILE)
        self._store = store
        self._queue_size = queue_size
        self._finish_timeout_s = finish_timeout_s
        self._writer: BackgroundWriter | None = None
        self._monitor = None if system_every_s is None else SystemMonitor(system_every_s, self._record_system)
        self._step = 0
        self._sampled_step: int | None = None

    def start(self, run: RunInfo) -> None:
        """Begin or continue the record; the writer's thread opens the store."""
        self._step = run.first_step

        def kept(record: Record) -> bool:
            """Return whether to keep a record in the spool: False if this process will record it again."""
            return not isinstance(record, End) and not (isinstance(record, Metrics) and record.step >= run.first_step)

        self._spool.keep(kept)
        self._writer = BackgroundWriter(self._store(run), self._spool, queue_size=self._queue_size)
        self.set_tags(run.tags)
        self._writer.start()
        if self._monitor is not None:
            self._monitor.start()

    def log_params(self, params: Mapping[str, Any]) -> None:
        self._put(Params(flat_params(params)))

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._step = max(self._step, step)
        self._put(Metrics(int(step), now_ms(), {key: float(value) for key, value in metrics.items()}))

    def log_artifact(self, path: Path, folder: str = "") -> None:
        self._put(Artifact(str(path.absolute()), folder))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        self._put(Tags(safe_tags(tags)))

    def log_data(self, split: DataSplit) -> None:
        self._put(split)

    def log_model(self, model: ExportedModel) -> None:
        self._put(model)

    def finish(self, status: str) -> None:
        """End the record within ``finish_timeout_s``; records that were not written stay in the spool file."""
        if status not in STATUSES:
            raise ValueError(f"status {status!r}: expected one of {', '.join(STATUSES)}")
        if self._monitor is not None:
            self._monitor.stop()
        self._put(End(status, now_ms()))
        self._started().finish(self._finish_timeout_s)

    def _record_system(self, values: Mapping[str, float]) -> None:
        """Record a sample at the current step; a curve has at most one point for each step."""
        if self._step != self._sampled_step:
            self._sampled_step = self._step
            self._put(Metrics(self._step, now_ms(), values))

    def _put(self, record: Record) -> None:
        self._started().put(record)

    def _started(self) -> BackgroundWriter:
        if self._writer is None:
            raise RuntimeError("the tracker has not been started: call start() first")
        return self._writer
