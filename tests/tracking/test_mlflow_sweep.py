"""Jobs of a sweep are children of one run."""

import logging
import uuid
from pathlib import Path
from typing import Any

import pytest

from runner.tracking import MlflowTracking, RunInfo
from runner.tracking.mlflow_store import MlflowStore
from tests.tracking.recorded import a_run, record, stored_run


def test_jobs_of_a_sweep_are_children_of_one_run(
    settings: MlflowTracking, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    children = []
    for job, name in enumerate(["lr=0.1", "lr=0.2"]):
        run_dir = sweep / str(job)
        run_dir.mkdir()
        children.append(RunInfo(uuid.uuid4().hex, name, run_dir, sweep_dir=sweep, sweep_name="lr sweep"))
        record(settings, children[-1], range(1))
        # Read by MLflow's fluent functions; must not turn the next child into this run.
        monkeypatch.setenv("MLFLOW_RUN_ID", stored_run(client, children[-1]).info.run_id)
    table = tmp_path / "table.md"
    table.write_text("| lr |")
    settings.finish_sweep(sweep, "failed", [table], "| lr |")

    stored = [stored_run(client, child) for child in children]
    (parent_id,) = {run.data.tags["mlflow.parentRunId"] for run in stored}
    assert [run.info.run_name for run in stored] == ["lr=0.1", "lr=0.2"]
    parent = client.get_run(parent_id)
    assert (parent.info.run_name, parent.info.status) == ("lr sweep", "FAILED")
    assert parent_id not in {run.info.run_id for run in stored}
    assert [file.path for file in client.list_artifacts(parent_id)] == ["table.md"]
    assert parent.data.tags["mlflow.note.content"] == "| lr |"


def test_a_sweep_that_never_reached_the_store_is_reported(
    settings: MlflowTracking, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        settings.finish_sweep(tmp_path, "finished")
    assert f"record of the sweep in {tmp_path} is incomplete: no job of it reached" in caplog.text


def test_the_run_of_a_sweep_began_with_its_first_job_and_has_its_user(uri: str, client: Any, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    run = a_run(tmp_path, sweep_dir=sweep)
    MlflowStore(uri, "runner", run).open()
    job = stored_run(client, run)
    parent = client.get_run(job.data.tags["mlflow.parentRunId"])
    assert parent.info.start_time == job.info.start_time
    assert parent.data.tags["mlflow.user"] == job.data.tags["mlflow.user"]


def test_a_job_that_goes_on_by_itself_is_recorded_as_the_job_it_is(
    settings: MlflowTracking, client: Any, tmp_path: Path
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the store's folder should be")
    job = a_run(tmp_path / "0", sweep_dir=tmp_path, sweep_name="sweep lr")
    job.run_dir.mkdir()
    record(MlflowTracking(uri=f"sqlite:///{blocked}/mlflow.db", system_metrics=False), job, range(3))
    record(settings, RunInfo(job.run_id, "mlp digits single", job.run_dir, first_step=3), range(3, 3))
    stored = stored_run(client, job)
    assert stored.info.run_name == "a run"
    assert client.get_run(stored.data.tags["mlflow.parentRunId"]).info.run_name == "sweep lr"
