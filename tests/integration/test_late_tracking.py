"""Waiting tracking records of jobs are in the store after the end of their sweep."""

import os
from pathlib import Path

from tests.integration.command import Command, succeed
from tests.integration.test_sweep_and_tracking import ONE_PROCESS, steps, stored

SMALL = ("model=mlp", "model.hidden=[8]", "train.steps=3", "train.log_every=1", "optimizer.clip_norm=null")
SWEEP = ("-m", *SMALL, *ONE_PROCESS, "hydra.sweep.dir=sweep")
TOO_SHORT = "tracking.finish_timeout_s=1e-6"


def assert_complete(folder: Path, run: str, lr: str) -> None:
    """The store has every parameter and every point of a run of three steps, once each."""
    assert stored(folder, "SELECT value FROM params WHERE run_uuid = ? AND key = 'optimizer.lr'", run) == [lr]
    assert steps(folder, run, "train/loss") == [1, 2, 3]
    assert steps(folder, run, "test/accuracy") == [3]


def spools(folder: Path) -> list[str]:
    """Directories of the runs that have records waiting."""
    return sorted(path.parent.name for path in folder.rglob("tracking-spool.jsonl"))


def test_the_end_of_a_sweep_writes_waiting_records_of_its_jobs(tmp_path: Path) -> None:
    sweep = Command(tmp_path, *SWEEP, TOO_SHORT, "optimizer.lr=0.1,1e30")  # its writers end with its process
    assert sweep.finish() == 1, sweep.errors
    assert spools(tmp_path) == []
    ((parent, status),) = stored(tmp_path, "SELECT run_uuid, status FROM runs WHERE name = 'sweep lr'")
    assert status == "FAILED"
    children = stored(
        tmp_path,
        "SELECT name, status, run_uuid FROM runs JOIN tags USING (run_uuid)"
        " WHERE key = 'mlflow.parentRunId' AND value = ? ORDER BY start_time",
        parent,
    )
    assert [child[:2] for child in children] == [("lr=0.1", "FINISHED"), ("lr=1e+30", "FAILED")]
    assert stored(tmp_path, "SELECT count(*) FROM runs") == [3]
    assert_complete(tmp_path, children[0][2], "0.1")


def test_a_store_that_is_away_as_a_sweep_ends_has_the_records_when_it_is_resumed_or_synchronised(
    tmp_path: Path,
) -> None:
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
    assert stored(store, "SELECT status FROM runs WHERE name = 'sweep lr'") == ["FINISHED"]
    rest = succeed(tmp_path, "sweep", "resume", "sweep")
    assert "of 1 run\n" in rest.errors
    assert list(elsewhere.iterdir()) == []

    assert spools(tmp_path) == []
    found = stored(store, "SELECT name, status, run_uuid FROM runs ORDER BY name")
    names = ["lr=0.1", "lr=0.2", "sweep lr"]
    assert [run[:2] for run in found] == [(name, "FINISHED") for name in names]
    for name, _, run in found[:2]:
        assert_complete(store, run, name.removeprefix("lr="))
