import logging
from pathlib import Path

import pytest

from runner.tracking.records import Record, Tags
from runner.tracking.spool import Spool
from runner.tracking.writer import BackgroundWriter, Store
from tests.tracking.fakes import FAST, FakeStore, GatedStore

TIMEOUT_S = 30.0


def _tags(numbers: range) -> list[Record]:
    return [Tags({"n": str(n)}) for n in numbers]


def _writer(store: Store, tmp_path: Path, queue_size: int = 1000) -> tuple[BackgroundWriter, Path]:
    path = tmp_path / "tracking-spool.jsonl"
    return BackgroundWriter(store, Spool(path), queue_size=queue_size, pace=FAST), path


def test_records_reach_the_store_in_order_and_leave_no_spool(tmp_path: Path) -> None:
    store = FakeStore()
    writer, spool = _writer(store, tmp_path)
    writer.start()
    for record in _tags(range(1200)):
        writer.put(record)
    writer.finish(TIMEOUT_S)
    assert store.written == _tags(range(1200))
    assert not spool.exists()


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_store_that_recovers_gets_every_record_once_and_in_order(failures: int, tmp_path: Path) -> None:
    store = FakeStore(open_failures=failures - 1, write_failures=failures)
    writer, spool = _writer(store, tmp_path)
    for record in _tags(range(5)):
        writer.put(record)
    writer.start()
    assert store.failed.wait(TIMEOUT_S)
    for record in _tags(range(5, 10)):
        writer.put(record)
    writer.finish(TIMEOUT_S)
    assert store.written == _tags(range(10))
    assert store.opens == failures
    assert not spool.exists()


def test_an_unavailable_store_leaves_all_records_in_the_spool_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FakeStore(open_failures=-1)
    writer, spool = _writer(store, tmp_path)
    writer.start()
    for record in _tags(range(10)):
        writer.put(record)
    with caplog.at_level(logging.WARNING):
        writer.finish(TIMEOUT_S)
    assert Spool(spool).head(None)[0] == _tags(range(10))
    assert caplog.text.count("tracking records go to") == 1, "a warning per failure would flood the log"
    assert "record of this run is incomplete (tracking store fake: no route to store)" in caplog.text
    assert str(spool) in caplog.text


def test_the_next_process_writes_earlier_records_first(tmp_path: Path) -> None:
    first, spool = _writer(FakeStore(open_failures=-1), tmp_path)
    first.start()
    for record in _tags(range(3)):
        first.put(record)
    first.finish(TIMEOUT_S)

    store = FakeStore()
    second, _ = _writer(store, tmp_path)
    for record in _tags(range(3, 6)):
        second.put(record)
    second.start()
    second.finish(TIMEOUT_S)
    assert store.written == _tags(range(6))
    assert not spool.exists()


@pytest.mark.parametrize("failures", [0, 2])
def test_a_full_queue_spills_into_the_spool_instead_of_blocking(failures: int, tmp_path: Path) -> None:
    store = GatedStore(write_failures=failures)
    writer, spool = _writer(store, tmp_path, queue_size=2)
    writer.put(_tags(range(1))[0])
    writer.start()
    assert store.entered.wait(TIMEOUT_S)
    for record in _tags(range(1, 10)):
        writer.put(record)  # would hang here if it waited for the store
    assert Spool(spool).head(None)[0] == _tags(range(3, 10))
    store.gate.set()
    writer.finish(TIMEOUT_S)
    assert store.written == _tags(range(10))
    assert not spool.exists()


def test_finish_does_not_wait_for_a_store_that_hangs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = GatedStore()
    writer, spool = _writer(store, tmp_path)
    for record in _tags(range(4)):
        writer.put(record)
    writer.start()
    assert store.entered.wait(TIMEOUT_S)
    with caplog.at_level(logging.WARNING):
        writer.finish(timeout_s=0.01)
    assert Spool(spool).head(None)[0] == _tags(range(4))
    assert "did not answer in time" in caplog.text
    store.gate.set()


def test_a_disk_that_refuses_the_spool_costs_records_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "gone" / "tracking-spool.jsonl"
    writer = BackgroundWriter(FakeStore(open_failures=-1), Spool(path), queue_size=2, pace=FAST)
    for record in _tags(range(5)):
        writer.put(record)
    writer.start()
    writer.finish(TIMEOUT_S)
    assert "tracking records are being lost" in caplog.text
    assert "5 tracking records were lost" in caplog.text


def test_a_writer_that_was_given_up_does_not_reach_for_the_store_any_more(tmp_path: Path) -> None:
    store = FakeStore()
    writer, spool = _writer(store, tmp_path)
    with Spool(spool).lock():
        writer.start()
        writer.put(Tags({"n": "1"}))
        writer.finish(timeout_s=0.01)
    writer._thread.join(TIMEOUT_S)
    assert store.opens == 0
    assert Spool(spool).head(None)[0] == [Tags({"n": "1"})]
