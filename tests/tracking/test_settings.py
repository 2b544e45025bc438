import subprocess
import sys
from pathlib import Path

import pytest

from runner.tracking import MlflowTracking, NoTracking, RunInfo, job_name, sweep_name
from runner.tracking.mlflow_client import resolve_uri


def test_the_default_store_is_mlflow_db_in_the_folder() -> None:
    assert resolve_uri(None, Path("/data/me"), {}) == "sqlite:////data/me/mlflow.db"


def test_the_variable_chooses_the_store_and_the_setting_overrules_it() -> None:
    environment = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:5000"}
    assert resolve_uri(None, Path("/data"), environment) == "http://127.0.0.1:5000"
    assert resolve_uri("sqlite:///other.db", Path("/data"), environment) == "sqlite:////data/other.db"


def test_a_store_mlflow_does_not_know_is_refused_with_the_options_and_without_the_password() -> None:
    expected = r"'ftp://\[redacted\]@host': expected an address that starts with one of sqlite"
    with pytest.raises(ValueError, match=expected) as error:
        resolve_uri("ftp://me:hunter2@host", Path("/data"), {})
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (MlflowTracking(uri="mlruns"), "tracking store 'mlruns'"),
        (MlflowTracking(experiment=" "), r"tracking\.experiment is empty"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: MlflowTracking, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings.check()


def test_no_tracking_accepts_everything_and_writes_nothing(tmp_path: Path) -> None:
    settings = NoTracking()
    settings.check()
    tracker = settings.create(tmp_path)
    tracker.start(RunInfo("id", "name", tmp_path))
    tracker.log_params({"a": {"b": 1}})
    tracker.log_metrics(0, {"train/loss": 1.0})
    tracker.log_artifact(tmp_path / "absent.png")
    tracker.set_tags({"a": "b"})
    tracker.finish("finished")
    settings.finish_sweep(tmp_path, "finished")
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_must_be_started(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="call start"):
        MlflowTracking(uri="sqlite:////nowhere/mlflow.db").create(tmp_path).log_metrics(0, {})


def test_an_unknown_status_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'done': expected one of finished, failed, interrupted"):
        MlflowTracking(uri="sqlite:////nowhere/mlflow.db").create(tmp_path).finish("done")


def test_jobs_are_named_by_their_swept_values() -> None:
    assert job_name({"optimizer.lr": "0.1", "parallelism": "single"}) == "lr=0.1 single"
    assert job_name({"a.name": "x", "b.name": "y"}) == "a.name=x b.name=y"
    assert job_name({"seed": "3", "tracking": "none"}) == "seed=3 tracking=none"
    assert job_name({"hub.token": "hunter2"}) == "token=[redacted]"


def test_sweeps_are_named_by_the_keys_they_vary() -> None:
    assert sweep_name({"optimizer.lr": "0.1", "parallelism": "single"}) == "sweep lr, parallelism"
    assert sweep_name(["a.name", "b.name"]) == "sweep a.name, b.name"
    assert sweep_name({}) == "sweep"


def test_importing_the_package_imports_nothing_slow() -> None:
    code = (
        "import sys, runner.tracking, runner.tracking.plots;"
        "print(sorted({'mlflow', 'matplotlib', 'pandas', 'sqlalchemy', 'rich'} & sys.modules.keys()))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
