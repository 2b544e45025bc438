"""The connection to MLflow: settings, limits, locks, runs found by id, and a new store that many processes open."""

import multiprocessing
import re
import sqlite3
import threading
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.records import summary
from runner.tracking import MlflowTracking, NoTracking, RunInfo, base, job_name, mlflow_client, sweep_name
from runner.tracking.base import SweepResult, group_of
from runner.tracking.mlflow_client import (
    KEY_LENGTH,
    directories_of_runs,
    file_lock,
    flat_params,
    resolve_experiment,
    resolve_uri,
    safe_key,
    safe_tags,
)
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.records import Tags
from tests.tracking.recorded import a_run, opened, recording, stored_run


def test_one_thread_at_a_time_imports_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """If two threads import MLflow concurrently, one of them may get a partly imported package."""
    held: list[bool] = []
    monkeypatch.setattr(mlflow_client, "_client_class", lambda: held.append(mlflow_client._IMPORTING.locked()))
    with mlflow_client.store_errors("sqlite:///mlflow.db"):
        held.append(mlflow_client._IMPORTING.locked())
    assert held == [True, False]


def test_a_run_is_found_by_the_beginning_of_either_id(uri: str, client: Any, tmp_path: Path) -> None:
    runs = [replace(a_run(tmp_path), run_id=run_id) for run_id in ("ab12ab12ab12ab12", "ab12ab12ab12cd34")]
    for run in runs:
        opened(uri, run).write([Tags({"runner.run_dir": f"/runs/{run.run_id}"})])
    assert directories_of_runs(uri, "ab12ab12ab12ab12") == [Path("/runs/ab12ab12ab12ab12")]
    assert directories_of_runs(uri, "ab12ab12ab12c") == [Path("/runs/ab12ab12ab12cd34")]
    assert set(directories_of_runs(uri, "ab12ab12ab12")) == {Path(f"/runs/{run.run_id}") for run in runs}
    assert directories_of_runs(uri, stored_run(client, runs[0]).info.run_id) == [Path("/runs/ab12ab12ab12ab12")]
    assert directories_of_runs(uri, "ffffffffffffffff") == []


def test_a_missing_store_has_no_run_and_is_not_created(tmp_path: Path) -> None:
    assert directories_of_runs(f"sqlite:///{tmp_path}/mlflow.db", "ab12") == []
    assert list(tmp_path.iterdir()) == []


def test_a_second_holder_of_a_lock_waits_for_the_first(tmp_path: Path) -> None:
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
        thread.join(0.05)  # time enough to acquire a lock that is free
        events.append("first")
    thread.join(10)
    assert events == ["first", "second"]


# The keys that MLflow 3 accepts: mlflow.utils.validation.validate_param_and_metric_name.
_ACCEPTED = re.compile(r"[/\w.\- :]*")


def test_a_configuration_becomes_parameters_with_dotted_names() -> None:
    config = {"seed": 1, "train": {"epochs": None, "lr": 1e-3, "sizes": [1, 2]}, "model": {"name": "mlp"}, "empty": {}}
    assert flat_params(config) == {
        "seed": "1",
        "train.epochs": "null",
        "train.lr": "0.001",
        "train.sizes": "[1, 2]",
        "model.name": "mlp",
        "empty": "{}",
    }


@given(st.text(min_size=1, max_size=400))
def test_every_key_is_made_acceptable_and_long_keys_stay_distinct(key: str) -> None:
    safe = safe_key(key)
    assert _ACCEPTED.fullmatch(safe)
    assert len(safe) <= KEY_LENGTH
    assert safe_key(f"{key * 300}a") != safe_key(f"{key * 300}b")
    assert safe_key("+a[0],b@c") == "_x2b_a_x5b_0_x5d__x2c_b_x40_c", "codes replace other characters"


def test_values_are_truncated_at_the_limits_of_mlflow() -> None:
    assert len(flat_params({"text": "x" * 7000})["text"]) == 6000
    assert len(safe_tags({"text": "x" * 9000})["text"]) == 8000


def test_secrets_do_not_leave_the_machine() -> None:
    config = {"store": {"api_key": "hunter2"}, "model": {"tokens": 512}, "uri": "postgresql://me:hunter2@host/db"}
    shown = {"store.api_key": "[redacted]", "model.tokens": "512", "uri": "postgresql://[redacted]@host/db"}
    assert flat_params(config) == shown
    assert safe_tags({"my.token": "hunter2"}) == {"my.token": "[redacted]"}


def test_the_setting_overrides_the_variable_which_overrides_the_default_store() -> None:
    environment = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:5000"}
    assert resolve_uri(None, Path("/data/me"), {}) == "sqlite:////data/me/mlflow.db"
    assert resolve_uri(None, Path("/data"), environment) == "http://127.0.0.1:5000"
    assert resolve_uri("sqlite:///other.db", Path("/data"), environment) == "sqlite:////data/other.db"


def test_an_unknown_kind_of_store_is_refused_without_showing_the_password() -> None:
    expected = r"'ftp://\[redacted\]@host': expected an address that starts with one of sqlite"
    with pytest.raises(ValueError, match=expected) as error:
        resolve_uri("ftp://me:hunter2@host", Path("/data"), {})
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (MlflowTracking(uri="mlruns"), "tracking store 'mlruns'"),
        (MlflowTracking(experiment=" "), r"tracking\.experiment is empty"),
        (MlflowTracking(log_model="newest"), r"tracking\.log_model=newest: expected one of none, best, last"),
    ],
)
def test_invalid_settings_are_refused(settings: MlflowTracking, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings.check()


def test_no_tracking_accepts_everything_and_writes_nothing(tmp_path: Path) -> None:
    settings = NoTracking()
    settings.check()
    with recording(settings, RunInfo("id", "name", tmp_path)) as tracker:
        tracker.log_params({"a": {"b": 1}})
        tracker.log_metrics(0, {"train/loss": 1.0})
        tracker.log_artifact(tmp_path / "absent.png")
        tracker.set_tags({"a": "b"})
    settings.finish_sweep(tmp_path, SweepResult("finished"))
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_must_be_started_and_ended_with_a_known_status(tmp_path: Path) -> None:
    tracker = MlflowTracking(uri="sqlite:////nowhere/mlflow.db").create(tmp_path)
    with pytest.raises(RuntimeError, match="call start"):
        tracker.log_metrics(0, {})
    with pytest.raises(ValueError, match="'done': expected one of finished, diverged, simulated, failed, interrupted"):
        tracker.finish("done")


def test_every_status_of_a_run_has_a_status_in_the_store() -> None:
    assert set(mlflow_client.RUN_STATUS) == set(base.STATUSES) == set(summary.STATUSES)


def test_jobs_are_named_by_their_swept_values_and_sweeps_by_the_keys_they_vary() -> None:
    assert job_name({"optimizer.lr": "0.1", "parallelism": "single"}) == "lr=0.1 single"
    assert job_name({"a.name": "x", "b.name": "y"}) == "a.name=x b.name=y"
    assert job_name({"seed": "3", "tracking": "none"}) == "seed=3 tracking=none"
    assert job_name({"hub.token": "hunter2"}) == "token=[redacted]"
    folder = Path("multirun/2026-01-31/12-00-00")
    assert sweep_name({"optimizer.lr": "0.1", "parallelism": "single"}, folder) == "sweep 12-00-00: lr, parallelism"
    assert sweep_name(["a.name", "b.name"], folder) == "sweep 12-00-00: a.name, b.name"
    assert sweep_name({}, Path("mine")) == "sweep mine"
    assert group_of({"optimizer.lr": "0.1", "seed": "3"}, folder) == "lr=0.1 (12-00-00)"
    assert group_of({"seed": "3"}, folder) == "(12-00-00)"


def test_the_experiment_is_that_of_the_settings_or_the_environment_or_the_default() -> None:
    environment = {"MLFLOW_EXPERIMENT_NAME": "mine"}
    assert resolve_experiment("set", environment) == "set"
    assert resolve_experiment(None, environment) == "mine"
    assert resolve_experiment(None, {}) == resolve_experiment(None, {"MLFLOW_EXPERIMENT_NAME": ""}) == "runner"


PROCESSES = 4
LIMIT_S = 280.0


def take_part(folders: Sequence[Path], barrier: Barrier) -> None:
    """In every folder, at the same time as other processes, open a store and start the run of a sweep's job in it."""
    for folder in folders:
        run = RunInfo(uuid.uuid4().hex, "job", folder, sweep_dir=folder, sweep_name="sweep")
        barrier.wait(LIMIT_S)
        MlflowStore(f"sqlite:///{folder}/mlflow.db", "runner", run, 0).open()


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_simultaneous_jobs_on_a_new_store_share_one_parent(tmp_path: Path) -> None:
    """In each of two new folders, all jobs become children of one parent."""
    folders = [tmp_path / "0", tmp_path / "1"]
    for each in folders:
        each.mkdir()
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    processes = [context.Process(target=take_part, args=(folders, barrier)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    query = "SELECT count(DISTINCT value), count(*) FROM tags WHERE key = 'mlflow.parentRunId'"
    for folder in folders:
        with closing(sqlite3.connect(folder / "mlflow.db")) as database:
            assert database.execute(query).fetchone() == (1, PROCESSES)
