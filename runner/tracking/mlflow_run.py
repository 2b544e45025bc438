"""Write tracking records to an existing MLflow run. Networks become MLflow models that need no pickles."""

import itertools
import json
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from runner.tracking.mlflow_client import METRICS_PER_BATCH, PARAMS_PER_BATCH, RUN_STATUS, metric_key, safe_tags
from runner.tracking.records import Artifact, DataSplit, End, ExportedModel, Metrics, Params, Record, Tags

_log = logging.getLogger(__name__)


class MlflowRun:
    """An MLflow run. Call its methods within :func:`~runner.tracking.mlflow_client.store_errors`.

    known: key -> steps at which the store has a value. No further value is written for such a key and step, so that
    the curves of a resumed run have no repeated points.
    """

    def __init__(self, client: Any, run_id: str) -> None:
        self.run_id = run_id
        self.known: dict[str, set[int]] = {}
        self._client = client
        self._params: dict[str, str] = dict(client.get_run(run_id).data.params)

    def write(self, records: Sequence[Record]) -> None:
        """Write records in order; values that MLflow rejects as invalid are dropped with a warning."""
        writers: dict[type[Record], Callable[[list[Any]], None]] = {
            Metrics: self._write_metrics,
            Params: self._write_params,
            Tags: self._write_tags,
            Artifact: self._write_artifacts,
            DataSplit: self._write_data,
            ExportedModel: self._write_models,
            End: self._write_end,
        }
        for kind, group in itertools.groupby(records, key=type):
            writers[kind](list(group))

    def _write_metrics(self, records: Iterable[Metrics]) -> None:
        from mlflow.entities import Metric

        # MLflow would store infinity as 1.8e308, which flattens the chart. metrics.jsonl keeps the exact value.
        points = [
            Metric(metric_key(name), math.nan if math.isinf(value) else value, record.time_ms, record.step)
            for record in records
            for name, value in record.values.items()
            if record.step not in self.known.get(metric_key(name), ())
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

    def _write_data(self, records: Iterable[DataSplit]) -> None:
        """Write dataset inputs; MLflow keeps one input for each digest."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        def entity(record: DataSplit) -> Any:
            tensor = {"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, *record.shape]}}
            schema = {"mlflow_tensorspec": {"features": json.dumps([tensor]), "targets": None}}
            profile, source = {"num_rows": record.examples}, {"uri": record.source}
            documents = map(json.dumps, (source, schema, profile))
            dataset = Dataset(record.name, record.digest, "local", *documents)
            return DatasetInput(dataset, [InputTag("mlflow.data.context", record.split)])

        self._client.log_inputs(self.run_id, list(map(entity, records)))

    def _write_models(self, records: Iterable[ExportedModel]) -> None:
        for record in records:
            if Path(record.folder).is_dir():
                log_model(self._client, self.run_id, record)
            else:
                _log.warning("the network in %s no longer exists and is missing from the record", record.folder)

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


MODEL_NAME = "network"
_STEP_TAG = "runner.step"


def log_model(client: Any, run_id: str, record: ExportedModel) -> None:
    """Add a network to the models of an MLflow run, unless the run has a model of this step already.

    client: an MlflowClient. Call this function within :func:`~runner.tracking.mlflow_client.store_errors`.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    experiment_id = client.get_run(run_id).info.experiment_id
    of_run = client.search_logged_models([experiment_id], filter_string=f"source_run_id = '{run_id}'")
    kept = {model.tags.get(_STEP_TAG) for model in of_run if model.status == LoggedModelStatus.READY}
    if str(record.step) in kept:
        return
    tags = {_STEP_TAG: str(record.step)}
    model = client.create_logged_model(experiment_id, name=MODEL_NAME, source_run_id=run_id, tags=tags)
    with TemporaryDirectory() as folder:
        path = Path(folder) / MODEL_NAME
        _save(path, record, run_id, model)
        client.log_model_artifacts(model.model_id, str(path))
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, record.step)])


def _save(path: Path, record: ExportedModel, run_id: str, model: Any) -> None:
    import mlflow.pyfunc
    from mlflow.models import Model, ModelSignature
    from mlflow.types import Schema, TensorSpec

    # Pixels of any dtype fit in float64 without rounding.
    inputs = TensorSpec(np.dtype(np.float64), (-1, *record.shape))
    outputs = TensorSpec(np.dtype(np.float64), (-1, record.outputs))
    pixels = np.broadcast_to(np.reshape(record.example, (1, -1, *[1] * (len(record.shape) - 1))), (1, *record.shape))
    mlflow.pyfunc.save_model(
        path,
        python_model=str(Path(record.folder, record.code)),
        artifacts={MODEL_NAME: record.folder},
        signature=ModelSignature(Schema([inputs]), Schema([outputs])),
        input_example=np.ascontiguousarray(pixels, np.float64),
        pip_requirements=[record.requirement],
        mlflow_model=Model(artifact_path=model.artifact_location, run_id=run_id, model_id=model.model_id),
    )
