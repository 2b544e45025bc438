"""Runs that tests record, their content in the store, and a tracking store in memory that fails on request."""

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.tracking import MetricsLog, MlflowTracking, RunInfo, Tracker, Tracking
from runner.tracking.mlflow_store import RUN_ID_TAG, MlflowStore
from runner.tracking.records import Record, now_ms
from runner.tracking.writer import Pace, StoreUnavailableError


def a_run(tmp_path: Path, **fields: Any) -> RunInfo:
    return RunInfo(run_id=uuid.uuid4().hex, name="a run", run_dir=tmp_path, **fields)


def stored_run(client: Any, run: RunInfo) -> Any:
    experiment = client.get_experiment_by_name("runner").experiment_id
    (found,) = client.search_runs([experiment], f"tags.`{RUN_ID_TAG}` = '{run.run_id}'")
    return found


def stored_steps(client: Any, run: RunInfo, key: str) -> list[int]:
    return sorted(metric.step for metric in client.get_metric_history(stored_run(client, run).info.run_id, key))


def opened(uri: str, run: RunInfo, experiment: str = "runner") -> MlflowStore:
    """Return the open store of a run."""
    store = MlflowStore(uri, experiment, run, now_ms())
    store.open()
    return store


@contextmanager
def recording(settings: Tracking, run: RunInfo) -> Iterator[Tracker]:
    """Yield the tracker of a run, and finish it at the end of the block."""
    tracker = settings.create(run.run_dir)
    tracker.start(run)
    yield tracker
    tracker.finish("finished")


def away(folder: Path) -> MlflowTracking:
    """Return settings for a store that cannot be reached."""
    (folder / "blocked").write_text("a file where the store's folder should be")
    return MlflowTracking(uri=f"sqlite:///{folder / 'blocked'}/mlflow.db", system_metrics=False)


def record(settings: MlflowTracking, run: RunInfo, steps: range, status: str = "finished") -> None:
    """Record like the training loop: write every metric to metrics.jsonl and to the tracker."""
    history = run.run_dir / "metrics.jsonl"
    tracker = settings.create(run.run_dir)
    with MetricsLog(history, run.first_step) as log:
        tracker.start(run)
        for step in steps:
            values = {"train/loss": 1.0 / (step + 1)}
            log.append(step, values)
            tracker.log_metrics(step, values)
    tracker.finish(status)


FAST = Pace(flush_s=0.001, first_retry_s=0.001, last_retry_s=0.005, final_tries=10)


class FakeStore:
    """A store in memory. Its first ``open_failures`` opens and ``write_failures`` writes fail; -1 means all."""

    def __init__(self, open_failures: int = 0, write_failures: int = 0) -> None:
        self.written: list[Record] = []
        self.failed = threading.Event()
        self.opens = 0
        self._open_failures = open_failures
        self._write_failures = write_failures

    def open(self) -> None:
        self.opens += 1
        if self._open_failures:
            self._open_failures -= 1
            self._fail("no route to store")

    def write(self, records: Sequence[Record]) -> None:
        if self._write_failures:
            self._write_failures -= 1
            self._fail("database is locked")
        self.written += records

    def _fail(self, why: str) -> None:
        self.failed.set()
        raise StoreUnavailableError(f"tracking store fake: {why}")


class GatedStore(FakeStore):
    """A store that hangs: ``write`` blocks until ``gate`` is set."""

    def __init__(self, write_failures: int = 0) -> None:
        super().__init__(write_failures=write_failures)
        self.gate = threading.Event()
        self.entered = threading.Event()

    def write(self, records: Sequence[Record]) -> None:
        self.entered.set()
        self.gate.wait()
        super().write(records)
