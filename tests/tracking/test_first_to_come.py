"""Many processes that open a new store at once: every one gets a run, under one parent."""

import multiprocessing
import sqlite3
import uuid
from collections.abc import Sequence
from contextlib import closing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from runner.tracking import RunInfo
from runner.tracking.mlflow_store import MlflowStore

PROCESSES = 4
LIMIT_S = 280.0


def take_part(folders: Sequence[Path], barrier: Barrier) -> None:
    """In every folder, at the same moment as the others, open a store and the run of a job of a sweep in it."""
    for folder in folders:
        run = RunInfo(uuid.uuid4().hex, "job", folder, sweep_dir=folder, sweep_name="sweep")
        barrier.wait(LIMIT_S)
        MlflowStore(f"sqlite:///{folder}/mlflow.db", "runner", run).open()


def race(folder: Path, rounds: int) -> list[tuple[int, int]]:
    """Race in ``rounds`` fresh folders; return for each the number of parents and of their children."""
    folders = [folder / str(number) for number in range(rounds)]
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
    return [_recorded(each) for each in folders]


def _recorded(folder: Path) -> tuple[int, int]:
    query = "SELECT count(DISTINCT value), count(*) FROM tags WHERE key = 'mlflow.parentRunId'"
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        parents, children = database.execute(query).fetchone()
    return parents, children


@pytest.mark.timeout(300)
def test_jobs_at_once_on_a_new_store(tmp_path: Path) -> None:
    assert race(tmp_path, 2) == [(1, PROCESSES)] * 2
