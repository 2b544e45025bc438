"""The MLflow run that records one training run."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from runner.system.redaction import redact_text
from runner.tracking.base import RunInfo
from runner.tracking.metrics_log import read_metrics
from runner.tracking.mlflow_client import connect, metric_key, source_tags, store_errors
from runner.tracking.mlflow_run import MlflowRun
from runner.tracking.mlflow_sweep import parent_run_id
from runner.tracking.origin import Origin
from runner.tracking.records import Metrics, Record, now_ms

RUN_ID_TAG = "runner.run_id"


class MlflowStore:
    """The MLflow run that records one training run; ``open`` creates the MLflow run if it does not exist.

    started_ms: start time of the run in MLflow; None for now.
    """

    def __init__(self, uri: str, experiment: str, run: RunInfo, started_ms: int | None = None) -> None:
        self._uri = uri
        self._experiment = experiment
        self._run = run
        self._started_ms = now_ms() if started_ms is None else started_ms
        self._client: Any = None
        self._writer: MlflowRun | None = None

    @property
    def run_id(self) -> str | None:
        """The id of the MLflow run; None before ``open``."""
        return None if self._writer is None else self._writer.run_id

    def open(self) -> None:
        """Find or create the run; on a resume, restore the values below ``first_step`` that the store lacks."""
        self._client, experiment_id = connect(self._uri, self._experiment)
        with self._errors():
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
        """Write records in order; values that MLflow rejects as invalid are dropped with a warning."""
        assert self._writer is not None, "the writer's thread opens the store first"
        with self._errors():
            self._writer.write(records)

    def _find_run(self, experiment_id: str) -> str | None:
        found = self._client.search_runs([experiment_id], f"tags.`{RUN_ID_TAG}` = '{self._run.run_id}'", max_results=1)
        return str(found[0].info.run_id) if found else None

    def _create_run(self, experiment_id: str) -> str:
        tags = {**source_tags(), RUN_ID_TAG: self._run.run_id}
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

    def _errors(self) -> AbstractContextManager[None]:
        return store_errors(f"tracking store {redact_text(self._uri)}")
