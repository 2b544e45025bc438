"""A sweep in MLflow: one parent run, whose id the processes of the sweep's jobs find in the file ``sweep.json``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.system.json_file import JsonFile
from runner.system.redaction import redact_text
from runner.system.schema import Record
from runner.tracking.base import DESCRIPTION_TAG, SweepResult
from runner.tracking.mlflow_client import connect, file_lock, flat_params, safe_tags, source_tags, store_errors
from runner.tracking.mlflow_run import MlflowRun
from runner.tracking.records import Artifact, End, Metrics, Params, Tags
from runner.tracking.writer import StoreUnavailableError

SWEEP_FILE = "sweep.json"


@dataclass(frozen=True)
class SweepRecord:
    """The content of sweep.json: the parent run, and its store (without user and password) and experiment."""

    store: str
    experiment_id: str
    run_id: str


_FILE: JsonFile[SweepRecord] = JsonFile(
    Record(SweepRecord), StoreUnavailableError, "delete it to record the sweep as a new parent run", version=None
)


def _stored_run_id(uri: str, experiment_id: str, sweep_dir: Path) -> str | None:
    """Return the id of the parent run in sweep.json; None if there is none in this store and experiment."""
    path = sweep_dir / SWEEP_FILE
    if not path.exists():
        return None
    stored = _FILE.read(path)
    return stored.run_id if (stored.store, stored.experiment_id) == (redact_text(uri), experiment_id) else None


def parent_run_id(client: Any, uri: str, experiment_id: str, sweep_dir: Path, name: str, started_ms: int) -> str:
    """Return the id of the parent run of a sweep; create the parent run, with start time ``started_ms``, if necessary.

    ``client`` ignores the environment variable MLFLOW_RUN_ID. With MLflow's fluent API, the parent run and all child
    runs would be the one run with the id in that variable.
    """
    with file_lock(sweep_dir / f".{SWEEP_FILE}.lock"):
        stored = _stored_run_id(uri, experiment_id, sweep_dir)
        if stored is not None:
            return stored
        tags = {**source_tags(), "runner.sweep_dir": str(sweep_dir)}
        run = client.create_run(experiment_id, started_ms, tags, name or sweep_dir.name)
        run_id = str(run.info.run_id)
        _FILE.write(sweep_dir / SWEEP_FILE, SweepRecord(redact_text(uri), experiment_id, run_id))
        return run_id


def end_parent(uri: str, experiment: str, sweep_dir: Path, result: SweepResult, ended_ms: int) -> None:
    """Add the result of a sweep to its parent run, and end the parent run. Raises StoreUnavailableError."""
    client, experiment_id = connect(uri, experiment)
    run_id = _stored_run_id(uri, experiment_id, sweep_dir)
    if run_id is None:
        raise StoreUnavailableError(f"no job of the sweep reached the tracking store {redact_text(uri)}")
    with store_errors(f"tracking store {redact_text(uri)}"):
        MlflowRun(client, run_id).write(
            [
                Params(flat_params(result.params)),
                Tags(safe_tags({DESCRIPTION_TAG: result.description} if result.description else {})),
                Metrics(0, ended_ms, result.metrics),
                *(Artifact(str(path), "") for path in result.artifacts),
                End(result.status, ended_ms),
            ]
        )
