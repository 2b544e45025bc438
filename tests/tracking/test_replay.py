"""Pending records of a run are written to its store by another process, in order, under the same run."""

import fcntl
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.tracking import RunInfo
from runner.tracking.mlflow_tracker import SPOOL_FILE
from runner.tracking.origin import Origin
from runner.tracking.records import End, Metrics, Record, Tags
from runner.tracking.replay import Replay
from runner.tracking.spool import Spool
from runner.tracking.writer import StoreUnavailableError
from tests.tracking.fakes import FakeStore
from tests.tracking.recorded import a_run

ADDRESS = "http://127.0.0.1:9"
LEFT: list[Record] = [
    Tags({"commit": "c0ffee"}),
    *(Metrics(step, step, {"train/loss": 0.5}) for step in range(700)),
    End("failed", 9),
]


def ended_run(directory: Path, uri: str = ADDRESS, left: Sequence[Record] = LEFT) -> RunInfo:
    """A job of a sweep that ended before anything of it reached the store."""
    directory.mkdir(parents=True)
    run = a_run(directory, sweep_dir=directory.parent, sweep_name="sweep lr")
    Origin.begun(uri, "mine", run)
    Spool(directory / SPOOL_FILE).append(left)
    return run


class Stores:
    """Makes fake stores and records the arguments."""

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


def test_the_record_of_a_run_that_left_nothing_is_not_opened(tmp_path: Path) -> None:
    run = ended_run(tmp_path / "0")
    (run.run_dir / SPOOL_FILE).write_text("")
    store = FakeStore()
    assert Replay(Stores(store)).run(run.run_dir, None, None) == 0
    assert store.opens == 0


@pytest.mark.parametrize(
    ("by_summary", "told"),
    [
        (End("finished", 700_000), End("finished", 700_000)),
        # Killed: the last that was heard of it was its last step.
        (None, End("interrupted", 699)),
    ],
)
def test_the_record_of_a_run_that_could_not_end_it_ends(tmp_path: Path, by_summary: End | None, told: End) -> None:
    run = ended_run(tmp_path / "0", left=LEFT[:-1])
    store = FakeStore()
    assert Replay(Stores(store)).run(run.run_dir, None, by_summary) == len(LEFT)
    assert store.written == [*LEFT[:-1], told]


def test_an_end_that_the_store_did_not_take_waits_on_like_the_rest(tmp_path: Path) -> None:
    run = ended_run(tmp_path / "0", left=LEFT[:-1])
    store = FakeStore()
    replay = Replay(Stores(_FillingStore(), store))
    with pytest.raises(StoreUnavailableError, match="disk full"):
        replay.run(run.run_dir, None, None)
    replay.run(run.run_dir, None, End("finished", 1))
    assert [record for record in store.written if isinstance(record, End)] == [End("interrupted", 699)]


class _FillingStore(FakeStore):
    """Takes the first records it is given and no more."""

    def write(self, records: Sequence[Record]) -> None:
        if self.written:
            self._fail("disk full")
        super().write(records)


def test_records_that_a_store_refuses_stay_pending(tmp_path: Path) -> None:
    run = ended_run(tmp_path / "0")
    store = FakeStore()
    replay = Replay(Stores(_FillingStore(), store))
    with pytest.raises(StoreUnavailableError, match="disk full"):
        replay.run(run.run_dir, None, None)
    assert replay.run(run.run_dir, None, None) == len(LEFT)
    assert store.written == LEFT


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


def test_a_store_that_fails_slowly_is_not_tried_again(tmp_path: Path) -> None:
    first, second = ended_run(tmp_path / "0"), ended_run(tmp_path / "1")
    other = FakeStore()
    replay = Replay(Stores(FakeStore(write_failures=1), other), patience_s=0.0)
    for run in (first, second):
        with pytest.raises(StoreUnavailableError, match="database is locked"):
            replay.run(run.run_dir, None, None)
    assert other.opens == 0


def test_a_store_that_refuses_one_run_at_once_is_tried_for_the_next(tmp_path: Path) -> None:
    first, second = ended_run(tmp_path / "0"), ended_run(tmp_path / "1")
    replay = Replay(Stores(FakeStore(write_failures=1), FakeStore()))
    with pytest.raises(StoreUnavailableError, match="database is locked"):
        replay.run(first.run_dir, None, None)
    assert replay.run(second.run_dir, None, None) == len(LEFT)


def test_the_wait_for_another_writer_is_limited(tmp_path: Path) -> None:
    runs = [ended_run(tmp_path / name) for name in ("0", "1")]
    stores = Stores(FakeStore())
    replay = Replay(stores, patience_s=0.01)
    with Spool(runs[0].run_dir / SPOOL_FILE).lock():
        with pytest.raises(TimeoutError, match=r"another writer has been at tracking-spool\.jsonl for 0\.01 s"):
            replay.run(runs[0].run_dir, None, None)
        with pytest.raises(StoreUnavailableError, match="another writer"):
            replay.run(runs[1].run_dir, None, None)
    assert len(stores.made_for) == 1


class _WatchfulStore(FakeStore):
    """Notes whether another writer of the same spool would have to wait."""

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


def test_no_other_writer_writes_meanwhile(tmp_path: Path) -> None:
    run = ended_run(tmp_path / "0")
    store = _WatchfulStore(run.run_dir)
    Replay(Stores(store)).run(run.run_dir, None, None)
    assert store.alone == [True] * 3
