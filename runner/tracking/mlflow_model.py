"""Record a network as an MLflow model from code, with a signature and an input example, and without pickles."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from runner.tracking.records import ExportedModel

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
