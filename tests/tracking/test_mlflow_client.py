"""The connection to MLflow: imports, locks, and runs found by id."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from runner.tracking import mlflow_client
from runner.tracking.mlflow_client import directories_of_runs, file_lock
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.records import Tags
from tests.tracking.recorded import a_run


def test_one_thread_at_a_time_imports_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two at once one may be handed a package that the other has imported half of."""
    barrier = threading.Barrier(2)
    alone: list[bool] = []

    def importing() -> None:
        try:
            barrier.wait(0.5)
        except threading.BrokenBarrierError:
            alone.append(True)

    def reach(_: int) -> None:
        with mlflow_client.store_errors("tracking store"):
            pass

    monkeypatch.setattr(mlflow_client, "_client_class", importing)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(reach, range(2)))
    assert alone == [True, True]


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


def test_a_second_holder_waits_for_the_first(tmp_path: Path) -> None:
    events: list[str] = []
    started = threading.Event()

    def second() -> None:
        started.set()
        with file_lock(tmp_path / "folder" / "lock"):
            events.append("second")

    thread = threading.Thread(target=second)
    with file_lock(tmp_path / "folder" / "lock"):
        thread.start()
        assert started.wait(10)
        thread.join(0.05)  # time enough to take a lock that is not held
        events.append("first")
    thread.join(10)
    assert events == ["first", "second"]
