"""The MLflow store with a real SQLite database: runs, sweeps and system metrics."""

import math
import sqlite3
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from runner.tracking import MetricsLog, MlflowTracking, RunInfo
from runner.tracking.base import SweepResult
from runner.tracking.mlflow_client import experiment_of_newest_run
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.origin import Origin
from runner.tracking.records import DataSplit, Metrics, Tags
from runner.tracking.spool import SPOOL_FILE
from runner.tracking.writer import StoreUnavailableError
from tests.tracking.recorded import a_run, away, opened, record, recording, stored_run, stored_steps


def test_a_run_is_recorded(settings: MlflowTracking, client: Any, tmp_path: Path) -> None:
    run = a_run(tmp_path, tags={"mlflow.source.git.commit": "c0ffee"})
    picture = tmp_path / "curve.png"
    picture.write_bytes(b"png")
    with recording(settings, run) as tracker:
        tracker.log_params({"optimizer": {"lr": 0.1, "+odd[0]": "x"}})
        for step in range(3):
            tracker.log_metrics(step, {"train/loss": float(step)})
        tracker.log_artifact(picture, "plots")
        tracker.set_tags({"note": "good"})

    stored = stored_run(client, run)
    assert (stored.info.run_name, stored.info.status) == ("a run", "FINISHED")
    assert stored.data.params == {"optimizer.lr": "0.1", "optimizer._x2b_odd_x5b_0_x5d_": "x"}
    assert stored.data.tags.items() >= {"mlflow.source.git.commit": "c0ffee", "note": "good"}.items()
    assert stored_steps(client, run, "train/loss") == [0, 1, 2]
    assert [file.path for file in client.list_artifacts(stored.info.run_id, "plots")] == ["plots/curve.png"]
    assert not (tmp_path / SPOOL_FILE).exists()
    assert Origin.read(tmp_path).mlflow_run_id == stored.info.run_id


@pytest.mark.parametrize("experiment", ["runner", "../../up", "a/b"])
def test_artifacts_are_stored_next_to_the_database(experiment: str, uri: str, client: Any, tmp_path: Path) -> None:
    opened(uri, a_run(tmp_path), experiment)
    found = client.get_experiment_by_name(experiment)
    location = Path(found.artifact_location)
    assert location.resolve().parent == Path(uri.removeprefix("sqlite:///")).parent / "mlruns"
    assert experiment_of_newest_run(uri) == found.experiment_id


def test_a_resumed_run_has_one_contiguous_curve(settings: MlflowTracking, client: Any, tmp_path: Path) -> None:
    history = tmp_path / "metrics.jsonl"
    run = a_run(tmp_path)
    record(settings, run, range(8), "interrupted")
    assert stored_run(client, run).info.status == "KILLED"
    resumed = RunInfo(run.run_id, run.name, tmp_path, first_step=5, history=history)
    record(settings, resumed, range(5, 10))
    assert stored_steps(client, run, "train/loss") == list(range(10))
    assert stored_run(client, run).info.status == "FINISHED"


def test_points_that_the_store_lacks_are_restored(settings: MlflowTracking, client: Any, tmp_path: Path) -> None:
    history = tmp_path / "metrics.jsonl"
    with MetricsLog(history) as log:
        for step in range(8):  # the run is killed before the tracker writes anything
            log.append(step, {"train/loss": 1.0, "test/accuracy": 0.5})
    run = a_run(tmp_path, first_step=5, history=history)
    record(settings, run, range(5, 10))
    assert stored_steps(client, run, "train/loss") == list(range(10))
    assert stored_steps(client, run, "test/accuracy") == list(range(5))


def test_a_point_that_was_logged_again_is_restored_once(settings: MlflowTracking, client: Any, tmp_path: Path) -> None:
    history = tmp_path / "metrics.jsonl"
    with MetricsLog(history) as log:
        for value in (0.5, 0.25):
            log.append(3, {"test/accuracy": value})
    run = a_run(tmp_path, first_step=4, history=history)
    record(settings, run, range(4, 4))
    stored = stored_run(client, run)
    (point,) = client.get_metric_history(stored.info.run_id, "test/accuracy")
    assert (point.step, point.value) == (3, 0.5)


def test_spooled_records_are_written_once_by_the_next_process(
    settings: MlflowTracking, client: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = a_run(tmp_path, tags={"only": "here"})
    record(away(tmp_path), run, range(8), "interrupted")
    assert "record of this run is incomplete" in caplog.text
    assert (tmp_path / SPOOL_FILE).exists()

    resumed = RunInfo(run.run_id, run.name, tmp_path, first_step=5, history=tmp_path / "metrics.jsonl")
    record(settings, resumed, range(5, 10))
    assert stored_steps(client, run, "train/loss") == list(range(10))
    stored = stored_run(client, run)
    assert stored.data.tags["only"] == "here"
    assert stored.info.status == "FINISHED"
    assert not (tmp_path / SPOOL_FILE).exists()


def test_repeated_records_are_harmless_and_a_refused_point_is_skipped(
    uri: str, client: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = a_run(tmp_path)
    store = opened(uri, run)
    values = (0.5, math.inf, math.nan)
    records = [Metrics(step, 1000 + step, {"train/loss": loss, "a@b": 1.0}) for step, loss in enumerate(values)]
    store.write(records)
    store.write(records)
    assert stored_steps(client, run, "train/loss") == [0, 1, 2]
    history = client.get_metric_history(stored_run(client, run).info.run_id, "train/loss")
    assert [math.isnan(metric.value) for metric in history] == [False, True, True]
    assert set(stored_run(client, run).data.metrics) == {"train/loss"}
    assert "MLflow refuses metrics 'a@b'" in caplog.text


def test_a_resumed_run_may_change_a_limit(settings: MlflowTracking, client: Any, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    for epochs in (2, 4):
        with recording(settings, run) as tracker:
            tracker.log_params({"train": {"epochs": epochs}, "seed": 1})
    stored = stored_run(client, run)
    assert stored.data.params == {"train.epochs": "2", "seed": "1"}
    assert stored.data.tags["resumed.train.epochs"] == "4"
    assert "resumed.seed" not in stored.data.tags


def test_a_missing_artifact_is_left_out(
    settings: MlflowTracking, client: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = a_run(tmp_path)
    with recording(settings, run) as tracker:
        tracker.log_artifact(tmp_path / "absent.png")
    assert f"{tmp_path / 'absent.png'} no longer exists" in caplog.text
    assert stored_run(client, run).info.status == "FINISHED"


def test_a_run_has_the_given_start_time(uri: str, client: Any, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    MlflowStore(uri, "runner", run, 1_500).open()
    assert stored_run(client, run).info.start_time == 1_500


def test_a_deleted_experiment_is_named_with_advice(uri: str, client: Any, tmp_path: Path) -> None:
    client.delete_experiment(client.create_experiment("old"))
    with pytest.raises(StoreUnavailableError, match=r"'old' has been deleted; restore it or set tracking\.experiment"):
        opened(uri, a_run(tmp_path), "old")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("hello " * 100, "DatabaseError: file is not a database"),
        # MLflow's own message begins with the driver's name, and appears after 100 s of retries.
        (None, "OperationalError: unable to open database file"),
    ],
    ids=["a file that is not a database", "a folder"],
)
def test_a_database_that_cannot_be_opened_fails_immediately(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    path.mkdir() if content is None else path.write_text(content)
    with pytest.raises(StoreUnavailableError, match=message):
        opened(f"sqlite:///{path}", a_run(tmp_path))


def test_the_splits_of_the_data_are_inputs_each_once(uri: str, client: Any, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    store = opened(uri, run)
    splits = [DataSplit("digits", split, f"c0ffee{split}", "/data", 7, [1, 8, 8]) for split in ("train", "test")]
    store.write(splits)
    store.write(splits)
    found = stored_run(client, run).inputs.dataset_inputs
    facts = [(each.dataset.name, each.dataset.digest, each.tags[0].key, each.tags[0].value) for each in found]
    assert facts == [("digits", f"c0ffee{split}", "mlflow.data.context", split) for split in ("train", "test")]
    assert found[0].dataset.source == '{"uri": "/data"}'
    assert found[0].dataset.profile == '{"num_rows": 7}'


def test_speeds_and_transfers_are_in_the_last_section_after_a_resume(uri: str, client: Any, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    values = {"perf/step_time_s": 0.5, "comm/staleness_max": 1.0, "system/cpu": 2.0, "train/loss": 3.0}
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        for step in (1, 2):
            log.append(step, values)
    opened(uri, run).write([Metrics(1, 1000, values)])
    resumed = opened(uri, replace(run, first_step=3, history=tmp_path / "metrics.jsonl"))
    resumed.write([Metrics(step, 2000, values) for step in (2, 3)])
    keys = ["system/cpu", "train/loss", "workers/staleness_max", "workers/step_time_s"]
    assert sorted(stored_run(client, run).data.metrics) == keys
    assert [stored_steps(client, run, key) for key in keys] == [[1, 2, 3]] * 4


def test_a_locked_database_is_tried_again(uri: str, tmp_path: Path) -> None:
    store = opened(uri, a_run(tmp_path))
    assert store._writer is not None
    store._writer._client = Mock(log_batch=Mock(side_effect=sqlite3.OperationalError("database is locked")))
    with pytest.raises(StoreUnavailableError, match=r"tracking store sqlite:.*database is locked"):
        store.write([Tags({"a": "b"})])


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
        # MLflow's fluent functions read this variable. It must not make the next child continue this run.
        monkeypatch.setenv("MLFLOW_RUN_ID", stored_run(client, children[-1]).info.run_id)
    table = tmp_path / "table.md"
    table.write_text("| lr |")
    long, metrics = ", ".join(map(str, range(5000))), {"jobs_failed": 1.0, "best_test_accuracy": 0.5}
    result = SweepResult("failed", [table], "| lr |", {"optimizer.lr": "0.1, 0.2", "seed": long}, metrics)
    settings.finish_sweep(sweep, result)
    settings.finish_sweep(sweep, replace(result, params={"optimizer.lr": "0.1, 0.2, 0.3"}))

    stored = [stored_run(client, child) for child in children]
    (parent_id,) = {run.data.tags["mlflow.parentRunId"] for run in stored}
    assert [run.info.run_name for run in stored] == ["lr=0.1", "lr=0.2"]
    parent = client.get_run(parent_id)
    assert (parent.info.run_name, parent.info.status) == ("lr sweep", "FAILED")
    assert parent_id not in {run.info.run_id for run in stored}
    assert [file.path for file in client.list_artifacts(parent_id)] == ["table.md"]
    assert parent.data.tags["mlflow.note.content"] == "| lr |"
    assert parent.data.params == {"optimizer.lr": "0.1, 0.2", "seed": long[:6000]}
    assert parent.data.tags["resumed.optimizer.lr"] == "0.1, 0.2, 0.3"
    assert parent.data.metrics == metrics


def test_a_sweep_that_never_reached_the_store_is_reported(
    settings: MlflowTracking, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings.finish_sweep(tmp_path, SweepResult("finished"))
    assert f"record of the sweep in {tmp_path} is incomplete: no job of the sweep reached" in caplog.text


def test_the_run_of_a_sweep_began_with_its_first_job_and_has_its_user(uri: str, client: Any, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    run = a_run(tmp_path, sweep_dir=sweep)
    opened(uri, run)
    job = stored_run(client, run)
    parent = client.get_run(job.data.tags["mlflow.parentRunId"])
    assert parent.info.start_time == job.info.start_time
    assert parent.data.tags["mlflow.user"] == job.data.tags["mlflow.user"]


def test_a_job_that_is_resumed_alone_belongs_to_its_sweep(
    settings: MlflowTracking, client: Any, tmp_path: Path
) -> None:
    job = a_run(tmp_path / "0", sweep_dir=tmp_path, sweep_name="sweep lr")
    job.run_dir.mkdir()
    record(away(tmp_path), job, range(3))
    record(settings, RunInfo(job.run_id, "mlp digits single", job.run_dir, first_step=3), range(3, 3))
    stored = stored_run(client, job)
    assert stored.info.run_name == "a run"
    assert client.get_run(stored.data.tags["mlflow.parentRunId"]).info.run_name == "sweep lr"


def test_system_metrics_are_recorded(uri: str, client: Any, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    with recording(MlflowTracking(uri=uri, system_metrics=True), run) as tracker:
        tracker.log_metrics(7, {"train/loss": 1.0})
    assert stored_steps(client, run, "system/cpu_utilization_percentage") == [7]


class _BusyMonitor:
    """A monitor that samples three times when the run begins and once when it ends."""

    def __init__(self, every_s: float, on_sample: Callable[[Mapping[str, float]], None]) -> None:
        self._on_sample = on_sample

    def start(self) -> None:
        for value in range(3):
            self._on_sample({"system/run_memory_usage_megabytes": float(value)})

    def stop(self) -> None:
        self._on_sample({"system/run_memory_usage_megabytes": 3.0})


def test_a_step_has_one_system_sample(uri: str, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.tracking.queued.SystemMonitor", _BusyMonitor)
    run = a_run(tmp_path)
    with recording(MlflowTracking(uri=uri, system_metrics=True), run) as tracker:
        tracker.log_metrics(4, {"train/loss": 1.0})
    assert stored_steps(client, run, "system/run_memory_usage_megabytes") == [0, 4]
