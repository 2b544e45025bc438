"""Every metric is stored once and in order, even if the store is unavailable, locked or slow or loses its answers."""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from runner.tracking import MetricsLog, MlflowTracking, RunInfo, Tracker, read_metrics
from runner.tracking.mlflow_store import RUN_ID_TAG
from runner.tracking.spool import SPOOL_FILE
from tests.integration.command import wait_until
from tests.tracking.mlflow_server import Gate, mlflow_server
from tests.tracking.recorded import a_run

KEYS = ("train/loss", "train/accuracy")


@pytest.fixture(scope="module")
def folder_of_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(folder_of_server: Path) -> Iterator[int]:
    with mlflow_server(folder_of_server) as port:
        yield port


@pytest.fixture
def database(server: int, folder_of_server: Path) -> Path:
    """Return the path of the server's database."""
    return folder_of_server / "mlflow.db"


@pytest.fixture
def gate(server: int) -> Iterator[Gate]:
    with Gate(server) as gate:
        yield gate


class Training:
    """A training loop that only records metrics. The store can change between two calls of ``steps``."""

    def __init__(self, settings: MlflowTracking, run: RunInfo) -> None:
        self._log = MetricsLog(run.run_dir / "metrics.jsonl")
        self._tracker: Tracker = settings.create(run.run_dir)
        self._done = 0
        self._tracker.start(run)

    def steps(self, count: int) -> None:
        for step in range(self._done + 1, self._done + count + 1):
            values = dict.fromkeys(KEYS, step / 8)
            self._log.append(step, values)
            self._tracker.log_metrics(step, values)
        self._done += count

    def finish(self) -> None:
        self._log.close()
        self._tracker.finish("finished")


def through(gate: Gate, **fields: object) -> MlflowTracking:
    return MlflowTracking(**{"uri": f"http://127.0.0.1:{gate.port}", "system_metrics": False, **fields})  # type: ignore[arg-type]


def points(database: Path, run: RunInfo, key: str) -> list[tuple[int, float]]:
    """Return step and value of the points in the store, in the order of writing."""
    query = (
        "SELECT m.step, m.value FROM metrics m JOIN tags t ON t.run_uuid = m.run_uuid"
        f" WHERE t.key = '{RUN_ID_TAG}' AND t.value = ? AND m.key = ? ORDER BY m.rowid"
    )
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query, (run.run_id, key)).fetchall()


def assert_complete(database: Path, run: RunInfo) -> None:
    """Require that the store has the points of metrics.jsonl, once and in order, and that no record is pending."""
    logged = list(read_metrics(run.run_dir / "metrics.jsonl"))
    for key in KEYS:
        assert points(database, run, key) == [(each.step, each.values[key]) for each in logged]
    assert not (run.run_dir / SPOOL_FILE).exists()


def test_metrics_survive_a_server_that_starts_late_and_stops(gate: Gate, database: Path, tmp_path: Path) -> None:
    gate.is_open = False
    run = a_run(tmp_path)
    training = Training(through(gate), run)
    training.steps(3)
    wait_until(lambda: gate.dropped >= 1)
    gate.is_open = True
    training.steps(3)
    wait_until(lambda: len(points(database, run, KEYS[0])) == 6)
    gate.is_open, gate.dropped = False, 0
    training.steps(20)
    wait_until(lambda: gate.dropped >= 2)
    training.steps(5)
    assert (tmp_path / SPOOL_FILE).exists()
    gate.is_open = True
    training.finish()
    assert_complete(database, run)


def test_metrics_are_stored_once_if_answers_are_lost(gate: Gate, database: Path, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    training = Training(through(gate), run)
    training.steps(1)
    wait_until(lambda: len(points(database, run, KEYS[0])) == 1)
    gate.loses_answers = True
    training.steps(5)
    wait_until(lambda: len(points(database, run, KEYS[0])) == 6)
    before = gate.passed
    wait_until(lambda: gate.passed > before)  # the same records were sent once more
    gate.loses_answers = False
    training.steps(5)
    training.finish()
    assert_complete(database, run)


@pytest.mark.slow
def test_metrics_survive_a_server_slower_than_the_run(gate: Gate, database: Path, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    gate.delay_s = 0.2
    training = Training(through(gate, queue_size=10), run)
    training.steps(600)
    assert (tmp_path / SPOOL_FILE).exists()
    training.finish()
    assert_complete(database, run)


@pytest.mark.slow
def test_metrics_survive_a_lock(uri: str, client: object, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database = Path(uri.removeprefix("sqlite:///"))
    run = a_run(tmp_path)
    training = Training(MlflowTracking(uri=uri, system_metrics=False), run)
    training.steps(5)
    wait_until(lambda: len(points(database, run, KEYS[0])) == 5)
    with closing(sqlite3.connect(database, isolation_level=None)) as other, caplog.at_level(logging.WARNING):
        other.execute("BEGIN EXCLUSIVE")
        training.steps(20)
        wait_until(lambda: "tracking records go to" in caplog.text)
        training.steps(5)
        assert (tmp_path / SPOOL_FILE).exists()
    assert "database is locked" in caplog.text
    training.finish()
    assert_complete(database, run)


def test_user_and_password_of_an_address_are_sent_and_never_shown(
    server: int, database: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = a_run(tmp_path)
    with Gate(server, "me", "hunter2") as gate, caplog.at_level(logging.INFO):
        gate.is_open = False
        training = Training(through(gate, uri=f"http://me:hunter2@127.0.0.1:{gate.port}"), run)
        training.steps(2)
        wait_until(lambda: "tracking records go to" in caplog.text)
        gate.is_open = True
        training.finish()
    assert_complete(database, run)
    assert gate.refused == 0
    assert f"http://[redacted]@127.0.0.1:{gate.port}" in caplog.text
    assert "hunter2" not in caplog.text
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert b"hunter2" not in database.read_bytes()


def test_a_wrong_password_does_not_end_the_run(server: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Gate(server, "me", "hunter2") as gate, caplog.at_level(logging.WARNING):
        training = Training(through(gate, uri=f"http://me:wrong1@127.0.0.1:{gate.port}"), a_run(tmp_path))
        training.steps(2)
        training.finish()
    assert gate.refused > 0
    assert gate.passed == 0
    assert "record of this run is incomplete" in caplog.text
    assert "wrong1" not in caplog.text
