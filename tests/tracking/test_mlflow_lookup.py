"""Finding the directory of a recorded run by its id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.tracking.mlflow_client import directories_of_runs
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.records import Tags
from tests.tracking.recorded import a_run

# MLflow 3.17 uses a loader that SQLAlchemy 2.1 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")


def test_a_run_is_found_by_the_beginning_of_either_id(uri: str, tmp_path: Path) -> None:
    stores = {}
    for run_id in ("ab12ab12ab12ab12", "ab12ab12ab12cd34"):
        stores[run_id] = MlflowStore(uri, "runner", replace(a_run(tmp_path), run_id=run_id))
        stores[run_id].open()
        stores[run_id].write([Tags({"runner.run_dir": f"/runs/{run_id}"})])
    assert directories_of_runs(uri, "ab12ab12ab12ab12") == [Path("/runs/ab12ab12ab12ab12")]
    assert directories_of_runs(uri, "ab12ab12ab12c") == [Path("/runs/ab12ab12ab12cd34")]
    assert set(directories_of_runs(uri, "ab12ab12ab12")) == {Path(f"/runs/{run_id}") for run_id in stores}
    mlflows_own = stores["ab12ab12ab12ab12"].run_id
    assert mlflows_own is not None
    assert directories_of_runs(uri, mlflows_own) == [Path("/runs/ab12ab12ab12ab12")]
    assert directories_of_runs(uri, "ffffffffffffffff") == []


def test_a_store_that_is_not_there_knows_no_run_and_is_not_made(tmp_path: Path) -> None:
    assert directories_of_runs(f"sqlite:///{tmp_path}/mlflow.db", "ab12") == []
    assert list(tmp_path.iterdir()) == []
