"""The contents of the MLflow store after sweeps and runs, even if written later, and the files that hold secrets."""

import os
import signal
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from runner.config.configuration import load_stored
from runner.records.summary import Summary
from tests.integration.command import Command, Start, succeed, wait_until
from tests.small_runs import typed
from tests.sweep.test_security import SECRET, files_with_the_secret

# A worker process would need more time to load the data than to train for these steps, so one process trains.
ONE_PROCESS = ("parallelism=single", "cluster.threads_per_worker=1")


def stored(folder: Path, query: str, *values: Any) -> list[Any]:
    """Return the rows that a query finds in a folder's store. A row of one column is returned as its value."""
    with closing(sqlite3.connect(f"file:{folder / 'mlflow.db'}?mode=rw", uri=True)) as database:
        rows = database.execute(query, values).fetchall()
    return [row[0] if len(row) == 1 else row for row in rows]


def steps(folder: Path, run: str, key: str) -> list[int]:
    """Return the steps of the points of a curve, including repeated steps."""
    return stored(folder, "SELECT step FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY step", run, key)


def last_logged_step(run_dir: Path) -> int:
    """Return the newest step in the metrics.jsonl of a killed run, whose last line may be unfinished."""
    *whole, _ = (run_dir / "metrics.jsonl").read_text().split("\n")
    return max(int(line.split('"step": ')[1].split(",")[0]) for line in whole)


LATE = typed("model=mlp train.steps=8 train.log_every=1 optimizer.clip_norm=null")
SWEEP = ("-m", *LATE, *ONE_PROCESS, "hydra.sweep.dir=sweep")


def assert_complete(folder: Path, run: str, lr: str) -> None:
    """Require that the store has every parameter and every point of a run of eight steps, once each."""
    assert stored(folder, "SELECT value FROM params WHERE run_uuid = ? AND key = 'optimizer.lr'", run) == [lr]
    assert steps(folder, run, "train/loss") == list(range(1, 9))
    assert steps(folder, run, "test/accuracy") == [8]


def spools(folder: Path) -> list[str]:
    """Return the names of the directories of the runs with pending records."""
    return sorted(path.parent.name for path in folder.rglob("tracking-spool.jsonl"))


@pytest.mark.slow
def test_a_sweep_is_a_parent_run_with_a_child_per_job_and_a_table_with_the_best_first(tmp_path: Path) -> None:
    """The jobs do not wait for the store, so the pending records are written at the end of the sweep."""
    arguments = (*SWEEP, "tracking.finish_timeout_s=1e-6", "optimizer.lr=0.0001,1e30,0.05")
    sweep = Command(tmp_path, *arguments)  # the threads that write records end with the process
    assert sweep.finish() == 1, sweep.errors
    assert spools(tmp_path) == []
    _, _, *rows = (line.split() for line in sweep.output.splitlines())
    assert [(row[:2], "finished" in row) for row in rows] == [
        (["2", "0.05"], True),
        (["0", "0.0001"], True),
        (["1", "1e+30"], False),
    ]
    assert "NumericError: the loss of step" in sweep.output
    assert "runner: 1 of 3 jobs failed" in sweep.errors

    ((parent, status),) = stored(tmp_path, "SELECT run_uuid, status FROM runs WHERE name = 'sweep sweep: lr'")
    assert status == "FAILED"
    children = stored(
        tmp_path,
        "SELECT name, status, run_uuid FROM runs JOIN tags USING (run_uuid)"
        " WHERE key = 'mlflow.parentRunId' AND value = ? ORDER BY start_time",
        parent,
    )
    expected = [("lr=0.0001", "FINISHED"), ("lr=1e+30", "FAILED"), ("lr=0.05", "FINISHED")]
    assert [child[:2] for child in children] == expected
    assert stored(tmp_path, "SELECT count(*) FROM runs") == [4]
    best = children[2][2]
    assert_complete(tmp_path, best, "0.05")
    artifacts = {path.name for path in (tmp_path / "mlruns" / "runner" / best / "artifacts").rglob("*.*")}
    assert artifacts - {"code.diff"} == {
        "config.yaml",
        "summary.json",
        "run.log",
        "data.json",
        "graph.dot",
        "graph.png",
        "learning_curves.png",
        "confusion_matrix.png",
    }


VALIDATED = typed(
    "model=mlp model.hidden=[8] train.steps=12 train.eval_every=3 data.val_fraction=0.2 tracking.pictures=false"
)


def test_a_job_has_its_data_its_best_evaluation_and_its_result_in_the_store(tmp_path: Path) -> None:
    """The table on the terminal and the store rank the jobs by the same numbers."""
    swept = ("optimizer.lr=0.1", "seed=1,2", "hydra.sweep.dir=mine")
    succeed(tmp_path, "-m", *VALIDATED, *ONE_PROCESS, *swept)
    for number, seed in enumerate("12"):
        summary = Summary.read(tmp_path / "mine" / str(number) / "summary.json")
        (run,) = stored(tmp_path, "SELECT run_uuid FROM runs WHERE name = ?", f"seed={seed}")
        best = "SELECT value, step FROM metrics WHERE run_uuid = ? AND key = 'best/val/accuracy'"
        assert stored(tmp_path, best, run) == [(summary.best_value, summary.best_step)]
        tags = dict(stored(tmp_path, "SELECT key, value FROM tags WHERE run_uuid = ?", run))
        assert tags["weights_sha256"] == summary.weights_sha256
        assert tags["runner.group"] == "(mine)"
        changed = tags["runner.changed"].split(", ")
        assert {f"seed={seed}", "model.name=mlp", "train.epochs=null"} <= set(changed)
        assert "tracking" not in tags["runner.changed"]
        assert tags["mlflow.note.content"].startswith("**mlp digits single**, 1 worker(s): finished after 12 updates")
        splits = "SELECT input_tags.value FROM inputs JOIN input_tags USING (input_uuid) WHERE destination_id = ?"
        assert sorted(stored(tmp_path, splits, run)) == ["test", "train", "validation"]
    metrics = dict(
        stored(tmp_path, "SELECT key, value FROM metrics JOIN runs USING (run_uuid) WHERE name = 'sweep mine: seed'")
    )
    values = [Summary.read(path).best_value for path in sorted(tmp_path.glob("mine/*/summary.json"))]
    assert metrics == {"jobs_finished": 2.0, "jobs_failed": 0.0, "best_val_accuracy": max(values)}


def test_a_killed_run_resumes_in_the_same_mlflow_run_without_gaps(start: Start, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    every = 2
    killed = start(
        tmp_path,
        *ONE_PROCESS,
        "train.steps=1000000",
        # With large batches, most time is spent in matrix products, during which another thread can import MLflow.
        "train.batch_size=256",
        f"train.log_every={every}",
        "train.eval_every=1000000",
        "checkpoint.every_steps=4",
        "hydra.run.dir=run",
        "tracking.pictures=false",
        "tracking.system_metrics=true",
    )
    logged = "SELECT count(*) FROM metrics WHERE key = 'train/loss'"
    database = tmp_path / "mlflow.db"
    wait_until(lambda: _has_rows(database) and stored(tmp_path, logged)[0] > 0, "points of the run in the store")
    killed.send(signal.SIGKILL)
    killed.finish()
    assert stored(tmp_path, "SELECT status FROM runs") == ["RUNNING"]

    total = last_logged_step(run_dir) + 4 * every
    succeed(tmp_path, "resume=run", f"train.steps={total}")
    ((run, status),) = stored(tmp_path, "SELECT run_uuid, status FROM runs")
    assert status == "FINISHED"
    assert steps(tmp_path, run, "train/loss") == [1, *range(every, total + 1, every)]
    assert steps(tmp_path, run, "test/accuracy") == [total]
    assert steps(tmp_path, run, "train/seconds") == sorted({1, *range(every, total + 1, every), total})
    seconds = stored(tmp_path, "SELECT value FROM metrics WHERE key = 'train/seconds' ORDER BY step")
    assert seconds == sorted(seconds)
    sampled = steps(tmp_path, run, "system/cpu_utilization_percentage")
    assert sampled == sorted(set(sampled))


@pytest.mark.slow
def test_resuming_a_finished_run_writes_its_pending_records(tmp_path: Path) -> None:
    small = (*typed("model=mlp model.hidden=[8] train.steps=3 train.log_every=1 tracking.pictures=false"), *ONE_PROCESS)
    away = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    run = Command(tmp_path, *small, "hydra.run.dir=run", environment=away)
    assert run.finish() == 0, run.errors
    assert "tracking-spool.jsonl" in {path.name for path in (tmp_path / "run").iterdir()}

    succeed(tmp_path, "resume=run")
    ((stored_run, status),) = stored(tmp_path, "SELECT run_uuid, status FROM runs")
    assert status == "FINISHED"
    assert steps(tmp_path, stored_run, "train/loss") == [1, 2, 3]
    assert steps(tmp_path, stored_run, "test/accuracy") == [3]
    assert "tracking-spool.jsonl" not in {path.name for path in (tmp_path / "run").iterdir()}


def _has_rows(database: Path) -> bool:
    """Return whether the store has a run. The query fails until MLflow has created the table of runs."""
    try:
        return bool(stored(database.parent, "SELECT 1 FROM runs"))
    except sqlite3.OperationalError:
        return False


@pytest.mark.slow
def test_records_of_a_sweep_without_store_are_written_by_resume_or_sync(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where the folder of the store should be")
    away = "tracking.uri=sqlite:///store/mlflow.db"
    sweep = succeed(tmp_path, *SWEEP, away, "optimizer.lr=0.1,0.2")
    assert "warning: tracking records of 2 runs are still pending (tracking store sqlite:" in sweep.errors
    assert f"runner: warning: write them with `runner sync {tmp_path / 'sweep'}`" in sweep.errors
    assert spools(tmp_path) == ["0", "1"]

    (tmp_path / "store").unlink()
    (tmp_path / "store").mkdir()
    store = tmp_path / "store"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    one = succeed(elsewhere, "sync", os.path.relpath(tmp_path / "sweep" / "1", elsewhere))
    assert "of 1 run\n" in one.output
    assert stored(store, "SELECT status FROM runs WHERE name = 'sweep sweep: lr'") == ["FINISHED"]
    rest = succeed(tmp_path, "sweep", "resume", "sweep")
    assert "of 1 run\n" in rest.errors
    assert list(elsewhere.iterdir()) == []

    assert spools(tmp_path) == []
    found = stored(store, "SELECT name, status, run_uuid FROM runs ORDER BY name")
    names = ["lr=0.1", "lr=0.2", "sweep sweep: lr"]
    assert [run[:2] for run in found] == [(name, "FINISHED") for name in names]
    for name, _, run in found[:2]:
        assert_complete(store, run, name.removeprefix("lr="))


# No server listens at this address, so the log of a run has an error message with the address.
URI = f"http://me:{SECRET}@127.0.0.1:9"
SECRET_RUN = (
    *("model=mlp", "model.hidden=[8]", "parallelism=single", "train.steps=2", "cluster.threads_per_worker=1"),
    f"tracking.uri={URI}",
)


def test_a_run_keeps_its_secret_in_private_files_and_resumes_with_it(tmp_path: Path) -> None:
    kept = {"run/config.yaml"}
    for arguments, earlier in (
        ((*SECRET_RUN, "hydra.run.dir=run"), []),
        (("resume=run", "train.steps=3"), ["run/config-1.yaml"]),
    ):
        command = succeed(tmp_path, *arguments)
        assert SECRET not in command.errors + command.output
        kept.update(earlier)
        assert files_with_the_secret(tmp_path) == kept
    assert load_stored(tmp_path / "run" / "config.yaml").tracking.uri == URI
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in kept} == {0o600}
    assert "http://[redacted]@127.0.0.1:9" in (tmp_path / "run" / "run.log").read_text()


@pytest.mark.slow
def test_a_sweep_keeps_its_secret_in_private_files(tmp_path: Path) -> None:
    command = succeed(tmp_path, "-m", *SECRET_RUN, "optimizer.lr=0.01,0.1", "hydra.sweep.dir=sweep")
    assert SECRET not in command.errors + command.output
    found = files_with_the_secret(tmp_path)
    assert {"sweep/plan.json", "sweep/0/frozen.yaml", "sweep/1/config.yaml"} <= found
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in found} == {0o600}
