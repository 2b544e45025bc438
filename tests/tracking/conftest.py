"""A real SQLite store that all tests with MLflow share, because creating a store takes seconds."""

from pathlib import Path
from typing import Any

import pytest

from runner.tracking import MlflowTracking, RunInfo
from runner.tracking.mlflow_store import MlflowStore


@pytest.fixture(scope="session")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('a folder') / 'mlflow.db'}"


@pytest.fixture(scope="session")
def client(uri: str) -> Any:
    MlflowStore(uri, "runner", RunInfo("first", "first", Path()), 0).open()
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


@pytest.fixture
def settings(uri: str, client: Any) -> MlflowTracking:
    return MlflowTracking(uri=uri, system_metrics=False)
