"""The MLflow runs that record a training run and its sweep. The file ``sweep.json`` has the id of the sweep's run."""

import getpass
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.system.json_file import JsonFile
from runner.system.redaction import redact_text
from runner.system.schema import Record as Schema
from runner.tracking.base import DESCRIPTION_TAG, RunInfo, SweepResult
from runner.tracking.metrics_log import read_metrics
from runner.tracking.mlflow_client import connect, file_lock, flat_params, metric_key, safe_tags, store_errors
from runner.tracking.mlflow_run import MlflowRun
from runner.tracking.origin import Origin
from runner.tracking.records import Artifact, End, Metrics, Params, Record, Tags
from runner.tracking.writer import StoreUnavailableError

SWEEP_FILE = "sweep.json"


@dataclass(frozen=True)
class SweepRecord:
    """The content of sweep.json: the parent run, and its store (without user and password) and experiment."""

    store: str
    experiment_id: str
    run_id: str


_FILE: JsonFile[SweepRecord] = JsonFile(
    Schema(SweepRecord), StoreUnavailableError, "delete it to record the sweep as a new parent run", version=None
)


def _source_tags() -> dict[str, str]:
    """Return the user and the program that started a run, as tags with the names that MLflow's pages use."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user id has no name
        user = "unknown"
    return {"mlflow.user": user, "mlflow.source.name": "runner", "mlflow.source.type": "LOCAL"}


def _stored_run_id(uri: str, experiment_id: str, sweep_dir: Path) -> str | None:
    """Return the id of the parent run in sweep.json; None if there is none in this store and experiment."""
    path = sweep_dir / SWEEP_FILE
    if not path.exists():
        return None
    stored = _FILE.read(path)
    return stored.run_id if (stored.store, stored.experiment_id) == (redact_text(uri), experiment_id) else None


def parent_run_id(client: Any, uri: str, experiment_id: str, sweep_dir: Path, name: str, started_ms: int) -> str:
    """Return the id of the parent run of a sweep; create the parent run, with start time ``started_ms``, if necessary.

    ``client`` ignores the environment variable MLFLOW_RUN_ID. MLflow's fluent API would record the parent run and all
    child runs in the one run that this variable names.
    """
    with file_lock(sweep_dir / f".{SWEEP_FILE}.lock"):
        stored = _stored_run_id(uri, experiment_id, sweep_dir)
        if stored is not None:
            return stored
        tags = {**_source_tags(), "runner.sweep_dir": str(sweep_dir)}
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
    with store_errors(uri):
        params, tags = flat_params(result.params), {DESCRIPTION_TAG: result.description} if result.description else {}
        artifacts = [Artifact(str(path), "") for path in result.artifacts]
        facts = (Params(params), Tags(safe_tags(tags)), Metrics(0, ended_ms, result.metrics))
        MlflowRun(client, run_id).write([*facts, *artifacts, End(result.status, ended_ms)])


RUN_ID_TAG = "runner.run_id"


class MlflowStore:
    """The MLflow run that records one training run; ``open`` creates the MLflow run if it does not exist.

    started_ms: start time of the run in MLflow, in milliseconds since 1970.
    """

    def __init__(self, uri: str, experiment: str, run: RunInfo, started_ms: int) -> None:
        self._uri = uri
        self._experiment = experiment
        self._run = run
        self._started_ms = started_ms
        self._client: Any = None
        self._writer: MlflowRun | None = None

    def open(self) -> None:
        """Find or create the run; on a resume, add missing values of steps before ``first_step``."""
        self._client, experiment_id = connect(self._uri, self._experiment)
        with store_errors(self._uri):
            run_id = self._find_run(experiment_id) or self._create_run(experiment_id)
            Origin.created(self._run.run_dir, run_id)
            run = self._client.get_run(run_id)
            writer = MlflowRun(self._client, run_id)
            histories = {key: self._client.get_metric_history(run_id, key) for key in run.data.metrics}
            writer.known = {key: {point.step for point in points} for key, points in histories.items()}
            if run.info.status != "RUNNING":
                self._client.update_run(run_id, status="RUNNING")
            self._restore_history(writer)
            self._writer = writer

    def write(self, records: Sequence[Record]) -> None:
        assert self._writer is not None, "the writer's thread opens the store first"
        with store_errors(self._uri):
            self._writer.write(records)

    def _find_run(self, experiment_id: str) -> str | None:
        found = self._client.search_runs([experiment_id], f"tags.`{RUN_ID_TAG}` = '{self._run.run_id}'", max_results=1)
        return str(found[0].info.run_id) if found else None

    def _create_run(self, experiment_id: str) -> str:
        tags = {**_source_tags(), RUN_ID_TAG: self._run.run_id}
        if self._run.sweep_dir is not None:
            sweep = (self._run.sweep_dir, self._run.sweep_name, self._started_ms)
            tags["mlflow.parentRunId"] = parent_run_id(self._client, self._uri, experiment_id, *sweep)
        run = self._client.create_run(experiment_id, self._started_ms, tags, self._run.name)
        return str(run.info.run_id)

    def _restore_history(self, writer: MlflowRun) -> None:
        history = self._run.history
        if self._run.first_step == 0 or history is None or not history.exists():
            return
        # A run that is resumed after its last step evaluates again. Keep the first value of each metric and step.
        first: dict[tuple[str, int], Metrics] = {}
        for record in read_metrics(history):
            if record.step < self._run.first_step:
                for name, value in record.values.items():
                    point = Metrics(record.step, record.time_ms, {name: value})
                    first.setdefault((metric_key(name), record.step), point)
        writer.write(list(first.values()))
        for key, step in first:
            writer.known.setdefault(key, set()).add(step)
