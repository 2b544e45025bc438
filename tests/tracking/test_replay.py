"""Another process writes a run's pending records to its store, using the run's stored tracking settings."""

import dataclasses
import fcntl
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.tracking import RunInfo
from runner.tracking.origin import ORIGIN_FILE, Origin
from runner.tracking.records import End, Metrics, Record, Tags
from runner.tracking.replay import Replay
from runner.tracking.spool import SPOOL_FILE, Spool
from runner.tracking.writer import StoreUnavailableError
from tests.tracking.recorded import FakeStore, a_run

ADDRESS = "http://127.0.0.1:9"
LEFT: list[Record] = [
    Tags({"commit": "c0ffee"}),
    *(Metrics(step, step, {"train/loss": 0.5}) for step in range(700)),
    End("failed", 9),
]


def ended_run(directory: Path, uri: str = ADDRESS, left: Sequence[Record] = LEFT) -> RunInfo:
    """Return a job of a sweep that ended before any of its records reached the store."""
    directory.mkdir(parents=True)
    run = a_run(directory, sweep_dir=directory.parent, sweep_name="sweep lr")
    Origin.begun(uri, "mine", run)
    Spool(directory / SPOOL_FILE).append(left)
    return run


class Stores:
    """A factory of fake stores that records its arguments."""

    def __init__(self, *stores: FakeStore) -> None:
        self._stores = iter(stores)
        self.made_for: list[tuple[str, str, RunInfo, int]] = []

    def __call__(self, *arguments: object) -> FakeStore:
        self.made_for.append(arguments)  # type: ignore[arg-type]
        return next(self._stores)


def test_pending_records_are_written_once_and_in_order(tmp_path: Path) -> None:
    run = ended_run(tmp_path / "0")
    started_ms = Origin.read(run.run_dir).started_ms
    store = FakeStore()
    stores = Stores(store)
    assert Replay(stores).run(run.run_dir, None, None) == len(LEFT)
    assert store.written == LEFT
    assert stores.made_for == [(ADDRESS, "mine", run, started_ms)]
    assert not (run.run_dir / SPOOL_FILE).exists()


def test_the_record_of_a_run_without_pending_records_is_not_opened(tmp_path: Path) -> None:
    run = ended_run(tmp_path / "0")
    (run.run_dir / SPOOL_FILE).write_text("")
    store = FakeStore()
    assert Replay(Stores(store)).run(run.run_dir, None, None) == 0
    assert store.opens == 0


@pytest.mark.parametrize(
    ("by_summary", "end"),
    [
        (End("finished", 700_000), End("finished", 700_000)),
        # The run was killed, so it ends at the time of its last step.
        (None, End("interrupted", 699)),
    ],
)
def test_the_record_of_a_run_that_lost_its_store_is_ended(tmp_path: Path, by_summary: End | None, end: End) -> None:
    run = ended_run(tmp_path / "0", left=LEFT[:-1])
    store = FakeStore()
    assert Replay(Stores(store)).run(run.run_dir, None, by_summary) == len(LEFT)
    assert store.written == [*LEFT[:-1], end]


class _FillingStore(FakeStore):
    """A store that accepts the records of its first write and refuses all later records."""

    def write(self, records: Sequence[Record]) -> None:
        if self.written:
            self._fail("disk full")
        super().write(records)


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "killed"])
def test_refused_records_stay_pending_with_the_added_end(tmp_path: Path, ended: bool) -> None:
    run = ended_run(tmp_path / "0", left=LEFT if ended else LEFT[:-1])
    store = FakeStore()
    replay = Replay(Stores(_FillingStore(), store))
    with pytest.raises(StoreUnavailableError, match="disk full"):
        replay.run(run.run_dir, None, None)
    assert replay.run(run.run_dir, None, End("finished", 1)) == len(LEFT)
    assert store.written == (LEFT if ended else [*LEFT[:-1], End("interrupted", 699)])


def test_a_store_that_did_not_answer_is_not_tried_again(tmp_path: Path) -> None:
    first, second = ended_run(tmp_path / "0"), ended_run(tmp_path / "1")
    elsewhere = ended_run(tmp_path / "2", "http://127.0.0.1:10")
    away = FakeStore(open_failures=1)
    replay = Replay(Stores(away, away, FakeStore()))
    for run in (first, second):
        with pytest.raises(StoreUnavailableError, match="no route to store"):
            replay.run(run.run_dir, None, None)
    assert away.opens == 1
    assert replay.run(elsewhere.run_dir, None, None) == len(LEFT)


@pytest.mark.parametrize(("patience_s", "tried_again"), [(0.0, False), (100.0, True)], ids=["slowly", "at once"])
def test_a_store_that_refuses_one_run_is_tried_for_the_next_only_if_it_answered_immediately(
    tmp_path: Path, patience_s: float, tried_again: bool
) -> None:
    first, second = ended_run(tmp_path / "0"), ended_run(tmp_path / "1")
    other = FakeStore()
    replay = Replay(Stores(FakeStore(write_failures=1), other), patience_s)
    for run in (first,) if tried_again else (first, second):
        with pytest.raises(StoreUnavailableError, match="database is locked"):
            replay.run(run.run_dir, None, None)
    assert not tried_again or replay.run(second.run_dir, None, None) == len(LEFT)
    assert other.opens == tried_again


def test_the_wait_for_another_writer_is_limited(tmp_path: Path) -> None:
    runs = [ended_run(tmp_path / name) for name in ("0", "1")]
    stores = Stores(FakeStore())
    replay = Replay(stores, patience_s=0.01)
    with Spool(runs[0].run_dir / SPOOL_FILE).lock():
        with pytest.raises(TimeoutError, match=r"another process has locked tracking-spool\.jsonl for 0\.01 s"):
            replay.run(runs[0].run_dir, None, None)
        with pytest.raises(StoreUnavailableError, match="another process"):
            replay.run(runs[1].run_dir, None, None)
    assert len(stores.made_for) == 1


class _WatchfulStore(FakeStore):
    """A store that records whether another writer of the same spool would have to wait."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self.alone: list[bool] = []
        self._lock = run_dir / f".{SPOOL_FILE}.lock"

    def open(self) -> None:
        self._look()

    def write(self, records: Sequence[Record]) -> None:
        self._look()

    def _look(self) -> None:
        with self._lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.alone.append(True)
            else:
                self.alone.append(False)


def test_no_other_writer_can_write_during_a_replay(tmp_path: Path) -> None:
    run = ended_run(tmp_path / "0")
    store = _WatchfulStore(run.run_dir)
    Replay(Stores(store)).run(run.run_dir, None, None)
    assert store.alone == [True] * 3


def test_a_job_that_is_resumed_alone_keeps_its_origin(tmp_path: Path) -> None:
    job = a_run(tmp_path, sweep_dir=tmp_path.parent, sweep_name="sweep lr")
    first = Origin.begun("http://away", "runner", job)
    alone = dataclasses.replace(job, name="mlp digits single", sweep_dir=None, sweep_name="")
    again = Origin.begun("http://here", "runner", alone)
    assert again == dataclasses.replace(first, store="http://here")
    assert Origin.read(tmp_path) == again
    assert again.run(tmp_path) == job


def test_a_run_has_an_id_in_mlflow_as_long_as_its_store_and_experiment_stay(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    Origin.created(tmp_path, "cafe")  # without tracking.json, nothing is written
    assert not (tmp_path / ORIGIN_FILE).exists()
    assert Origin.begun("http://here", "runner", run).mlflow_run_id == ""
    Origin.created(tmp_path, "cafe")
    assert Origin.read(tmp_path).mlflow_run_id == "cafe"
    assert Origin.begun("http://here", "runner", run).mlflow_run_id == "cafe"
    assert Origin.begun("http://here", "another", run).mlflow_run_id == ""


def test_another_run_in_the_same_directory_has_another_origin(tmp_path: Path) -> None:
    Origin.begun("http://here", "runner", a_run(tmp_path))
    other = a_run(tmp_path)
    assert Origin.begun("http://here", "runner", other).run_id == other.run_id


def test_user_and_password_are_not_stored_but_required_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = Origin.begun("http://me:hunter2@host", "runner", a_run(tmp_path))
    assert "hunter2" not in (tmp_path / ORIGIN_FILE).read_text()
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ValueError, match=r"recorded in http://\[redacted\]@host: set MLFLOW_TRACKING_URI to this add"):
        origin.address(None, tmp_path)
    assert origin.address("http://me:hunter2@host", tmp_path) == "http://me:hunter2@host"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@host")
    assert origin.address(None, tmp_path) == "http://me:hunter2@host"


def test_a_password_in_an_address_is_not_stored_and_the_file_is_private(tmp_path: Path) -> None:
    (tmp_path / ORIGIN_FILE).touch(0o644)
    address = "postgresql://host/db?sslmode=require&sslpassword=hunter2"
    origin = Origin.begun(address, "runner", a_run(tmp_path))
    assert origin.store == "postgresql://host/db?sslmode=require&sslpassword=[redacted]"
    assert "hunter2" not in (tmp_path / ORIGIN_FILE).read_text()
    assert stat.S_IMODE((tmp_path / ORIGIN_FILE).stat().st_mode) == 0o600
    assert origin.address(address, tmp_path) == address


def test_a_plain_address_is_used_and_an_invalid_one_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    origin = Origin.begun("sqlite:////data/mlflow.db", "runner", a_run(tmp_path))
    assert origin.address(None, tmp_path) == "sqlite:////data/mlflow.db"
    with pytest.raises(ValueError, match="'ftp://host': expected an address that starts with one of sqlite"):
        Origin.begun("ftp://host", "runner", a_run(tmp_path)).address(None, tmp_path)


WRONG_KIND = '{"store": 1, "experiment": "", "run_id": "", "name": "", "started_ms": 1}'


@pytest.mark.parametrize("text", [None, "{", "[]", '{"store": "http://here"}', WRONG_KIND])
def test_a_damaged_origin_is_refused_with_advice(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / ORIGIN_FILE).write_text(text)
    with pytest.raises(ValueError, match=f"does not state how the run is recorded .*; `runner resume={tmp_path}`"):
        Origin.read(tmp_path)


def test_a_damaged_origin_is_replaced_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / ORIGIN_FILE).write_text("{")
    run = a_run(tmp_path)
    assert Origin.begun("http://here", "runner", run) == Origin.read(tmp_path)
    assert "does not state how the run is recorded" in caplog.text


def test_a_run_continues_if_its_directory_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = a_run(tmp_path / "gone")
    assert Origin.begun("http://here", "runner", run).run_id == run.run_id
    assert "can only be written by resuming it" in caplog.text
