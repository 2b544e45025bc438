"""Write tracking records to one MLflow run."""

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from runner.system.redaction import redact_text
from runner.tracking.base import RunInfo
from runner.tracking.metrics_log import read_metrics
from runner.tracking.mlflow_client import (
    METRICS_PER_BATCH,
    PARAMS_PER_BATCH,
    RUN_STATUS,
    connect,
    safe_metric,
    safe_tags,
    source_tags,
    store_errors,
)
from runner.tracking.mlflow_sweep import parent_run_id
from runner.tracking.origin import Origin
from runner.tracking.records import Artifact, End, Metrics, Params, Record, Tags, now_ms

_log = logging.getLogger(__name__)

RUN_ID_TAG = "runner.run_id"


class MlflowStore:
    """The MLflow run that records one training run; ``open`` creates the MLflow run if it does not exist.

    If the store has a metric value for a (key, step) pair when it is opened, no other value is written for this pair.
    So the curves of a resumed run have no repetitions. started_ms: start time of the run in MLflow; None for now.
    """

    def __init__(self, uri: str, experiment: str, run: RunInfo, started_ms: int | None = None) -> None:
        self.run_id: str | None = None
        self._uri = uri
        self._experiment = experiment
        self._run = run
        self._started_ms = now_ms() if started_ms is None else started_ms
        self._client: Any = None
        self._params: dict[str, str] = {}
        self._known: dict[str, set[int]] = {}

    def open(self) -> None:
        """Find or create the run; on a resume, restore the values below ``first_step`` that the store lacks."""
        self._client, experiment_id = connect(self._uri, self._experiment)
        with self._errors():
            self.run_id = self._find_run(experiment_id) or self._create_run(experiment_id)
            Origin.created(self._run.run_dir, self.run_id)
            run = self._client.get_run(self.run_id)
            self._params = dict(run.data.params)
            histories = {key: self._client.get_metric_history(self.run_id, key) for key in run.data.metrics}
            self._known = {key: {point.step for point in points} for key, points in histories.items()}
            if run.info.status != "RUNNING":
                self._client.update_run(self.run_id, status="RUNNING")
            self._restore_history()

    def write(self, records: Sequence[Record]) -> None:
        """Write records in order; values that MLflow rejects as invalid are dropped with a warning."""
        writers: dict[type[Record], Callable[[list[Any]], None]] = {
            Metrics: self._write_metrics,
            Params: self._write_params,
            Tags: self._write_tags,
            Artifact: self._write_artifacts,
            End: self._write_end,
        }
        with self._errors():
            for kind, group in itertools.groupby(records, key=type):
                writers[kind](list(group))

    def _write_metrics(self, records: Iterable[Metrics]) -> None:
        from mlflow.entities import Metric

        points = [
            Metric(key, safe_metric(value), record.time_ms, record.step)
            for record in records
            for key, value in record.values.items()
            if record.step not in self._known.get(key, ())
        ]
        self._log("metrics", points, METRICS_PER_BATCH)

    def _write_params(self, records: Iterable[Params]) -> None:
        """Write parameters. MLflow cannot change a parameter, so a changed value in a resumed run becomes a tag."""
        from mlflow.entities import Param

        values = {key: value for record in records for key, value in record.values.items()}
        changed = {key: value for key, value in values.items() if self._params.get(key, value) != value}
        fresh = {key: value for key, value in values.items() if key not in self._params}
        self._log("params", [Param(key, value) for key, value in fresh.items()], PARAMS_PER_BATCH)
        self._params |= fresh
        self._write_tags([Tags(safe_tags({f"resumed.{key}": value for key, value in changed.items()}))])

    def _write_tags(self, records: Iterable[Tags]) -> None:
        from mlflow.entities import RunTag

        values = {key: value for record in records for key, value in record.values.items()}
        self._log("tags", [RunTag(key, value) for key, value in values.items()], PARAMS_PER_BATCH)

    def _write_artifacts(self, records: Iterable[Artifact]) -> None:
        for record in records:
            if Path(record.path).exists():
                self._client.log_artifact(self.run_id, record.path, record.folder or None)
            else:
                _log.warning("artifact %s no longer exists and is missing from the tracking record", record.path)

    def _write_end(self, records: Sequence[End]) -> None:
        last = records[-1]
        self._client.set_terminated(self.run_id, status=RUN_STATUS[last.status], end_time=last.time_ms)

    def _log(self, field: str, entities: list[Any], limit: int) -> None:
        """Send entities in batches of at most ``limit``; drop invalid entities with a warning in the log."""
        from mlflow.exceptions import MlflowException

        for start in range(0, len(entities), limit):
            batch = entities[start : start + limit]
            try:
                self._client.log_batch(self.run_id, synchronous=True, **{field: batch})
            except MlflowException as error:
                if error.error_code != "INVALID_PARAMETER_VALUE":
                    raise
                if len(batch) == 1:
                    _log.warning("MLflow refuses %s %r: %s", field, batch[0].key, error.message)
                else:
                    self._log(field, batch, limit=(len(batch) + 1) // 2)

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

    def _restore_history(self) -> None:
        history = self._run.history
        if self._run.first_step == 0 or history is None or not history.exists():
            return
        # A run that is resumed at its end evaluates again. If a metric has two values for a step, the first is kept.
        first: dict[tuple[str, int], Metrics] = {}
        for record in read_metrics(history):
            if record.step < self._run.first_step:
                for key, value in record.values.items():
                    first.setdefault((key, record.step), Metrics(record.step, record.time_ms, {key: value}))
        self._write_metrics(first.values())
        for key, step in first:
            self._known.setdefault(key, set()).add(step)

    def _errors(self) -> AbstractContextManager[None]:
        return store_errors(f"tracking store {redact_text(self._uri)}")
