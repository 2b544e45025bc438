"""A sweep in MLflow: one parent run, which the processes of its jobs share through ``sweep.json``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.system.json_file import JsonFile
from runner.system.redaction import redact_text
from runner.system.schema import Record
from runner.tracking.mlflow_client import connect, file_lock, source_tags, store_errors
from runner.tracking.mlflow_rules import RUN_STATUS, TAG_LENGTH
from runner.tracking.records import End, now_ms
from runner.tracking.writer import StoreUnavailableError

_log = logging.getLogger(__name__)

SWEEP_FILE = "sweep.json"
_DESCRIPTION_TAG = "mlflow.note.content"


@dataclass(frozen=True)
class _Stored:
    """The content of sweep.json."""

    store: str
    experiment_id: str
    run_id: str


_FILE: JsonFile[_Stored] = JsonFile(
    Record(_Stored), StoreUnavailableError, "delete it to record the sweep as a new parent run", version=None
)


@dataclass(frozen=True)
class SweepRecord:
    """The place of the record of a sweep: an experiment in a store, and the directory of the sweep."""

    uri: str
    experiment_id: str
    sweep_dir: Path

    def stored_run_id(self) -> str | None:
        """Return the parent run in sweep.json, None if there is none in this store and experiment."""
        path = self.sweep_dir / SWEEP_FILE
        if not path.exists():
            return None
        stored = _FILE.read(path)
        same = (stored.store, stored.experiment_id) == (redact_text(self.uri), self.experiment_id)
        return stored.run_id if same else None

    def store_run_id(self, run_id: str) -> None:
        """Make ``run_id`` the parent run of the sweep; the caller holds its lock."""
        _FILE.write(self.sweep_dir / SWEEP_FILE, _Stored(redact_text(self.uri), self.experiment_id, run_id))


def parent_run_id(client: Any, place: SweepRecord, name: str, started_ms: int) -> str:
    """Return the parent run of the jobs of a sweep. The first job creates it, with its own start time.

    It is created through the client, which ignores the variable MLFLOW_RUN_ID: MLflow's fluent functions would use that
    run for the parent and for every child.
    """
    with file_lock(place.sweep_dir / f".{SWEEP_FILE}.lock"):
        stored = place.stored_run_id()
        if stored is not None:
            return stored
        tags = {**source_tags(), "runner.sweep_dir": str(place.sweep_dir)}
        run = client.create_run(place.experiment_id, started_ms, tags, name or place.sweep_dir.name)
        place.store_run_id(run.info.run_id)
        return str(run.info.run_id)


def finish_parent(
    uri: str, experiment: str, sweep_dir: Path, status: str, artifacts: Sequence[Path], description: str
) -> None:
    """Call :func:`end_parent` with the current time; the failure of a store is only reported in the log."""
    end = End(status, now_ms())
    try:
        end_parent(uri, experiment, sweep_dir, end, artifacts, description)
    except StoreUnavailableError as error:
        _log.warning("the record of the sweep in %s is incomplete: %s", sweep_dir, error)


def end_parent(
    uri: str, experiment: str, sweep_dir: Path, end: End, artifacts: Sequence[Path], description: str
) -> None:
    """End the parent run, describe it and add files to it. Raises StoreUnavailableError."""
    client, experiment_id = connect(uri, experiment)
    run_id = SweepRecord(uri, experiment_id, sweep_dir).stored_run_id()
    if run_id is None:
        raise StoreUnavailableError(f"no job of it reached the tracking store {redact_text(uri)}")
    with store_errors(f"tracking store {redact_text(uri)}"):
        for path in artifacts:
            client.log_artifact(run_id, str(path))
        if description:
            client.set_tag(run_id, _DESCRIPTION_TAG, description[:TAG_LENGTH])
        client.set_terminated(run_id, status=RUN_STATUS[end.status], end_time=end.time_ms)
