"""Tracking records: their text lines, metrics.jsonl, the spool, and the thread that writes to the store."""

import itertools
import json
import math
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.tracking import metrics_log
from runner.tracking.metrics_log import MetricsLog, read_metrics
from runner.tracking.records import Artifact, End, Metrics, Params, Record, Tags, from_line, to_line
from runner.tracking.spool import Spool
from runner.tracking.writer import BackgroundWriter, Pace, Store
from tests.integration.command import wait_until
from tests.tracking.recorded import FAST, FakeStore, GatedStore

_texts = st.dictionaries(st.text(), st.text())
_records = st.one_of(
    st.builds(Metrics, st.integers(), st.integers(), st.dictionaries(st.text(), st.floats(allow_nan=False))),
    st.builds(Params, _texts),
    st.builds(Tags, _texts),
    st.builds(Artifact, st.text(), st.text()),
    st.builds(End, st.text(), st.integers()),
)


@given(_records)
def test_a_record_is_read_back_from_its_line(record: Record) -> None:
    line = to_line(record)
    assert line.count("\n") == 1
    assert from_line(line) == record


def test_lines_are_strict_json_even_if_values_are_not_finite() -> None:
    line = to_line(Metrics(1, 2, {"train/loss": math.nan, "train/norm": -math.inf}))
    assert json.loads(line, parse_constant=pytest.fail)["values"] == {"train/loss": "nan", "train/norm": "-inf"}
    restored = from_line(line)
    assert isinstance(restored, Metrics)
    assert math.isnan(restored.values["train/loss"])
    assert restored.values["train/norm"] == -math.inf


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"kind": "shell"}', '{"kind": "tags"}', '{"kind": "metrics", "step": 1, "time_ms": 1, "values": 3}'],
)
def test_a_line_that_is_not_a_record_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"expected|Expecting"):
        from_line(line)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def _steps(path: Path) -> list[int]:
    return [record.step for record in read_metrics(path)]


def _write_steps(path: Path, steps: range, first_step: int = 0) -> None:
    with MetricsLog(path, first_step) as log:
        for step in steps:
            log.append(step, {"train/loss": 1.0 / (step + 1)})


def test_appended_values_are_in_the_file_before_append_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1.5)
    with MetricsLog(path) as log:
        log.append(3, {"train/loss": np.float32(0.5), "perf/step_time_s": 0.25})
        assert list(read_metrics(path)) == [Metrics(3, 1500, {"train/loss": 0.5, "perf/step_time_s": 0.25})]
        log.sync()


@pytest.mark.parametrize(
    ("cut_line", "again", "expected"),
    [("", range(5, 10), range(10)), ("", range(2), range(2)), ('{"step": 8, "ti', range(8, 10), range(10))],
    ids=["resumed at a checkpoint", "started again", "killed within a line"],
)
def test_a_later_process_keeps_the_earlier_lines(path: Path, cut_line: str, again: range, expected: range) -> None:
    _write_steps(path, range(8))
    with path.open("a") as file:
        file.write(cut_line)
    assert _steps(path) == list(range(8))
    _write_steps(path, again, first_step=again.start)
    assert _steps(path) == list(expected)


@pytest.mark.parametrize("first_step", [0, 3, 5, 6])
def test_a_recovery_removes_the_last_lines_and_reads_no_others(
    first_step: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MetricsLog(path) as log:
        log.rewind(0)
        for step in (0, 1, 3, 3, 5):
            log.append(step, {"train/loss": 1.0})
        with monkeypatch.context() as patched:
            patched.setattr(metrics_log, "read_metrics", None)  # a call would raise TypeError
            log.rewind(first_step)
        log.append(7, {"train/loss": 1.0})
    assert _steps(path) == [step for step in (0, 1, 3, 3, 5) if step < first_step] + [7]


def test_damage_after_the_checkpoint_does_not_stop_a_resume(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _write_steps(path, range(3))
    with path.open("ab") as file:
        file.write(b"\0" * 20 + b"\n")
    _write_steps(path, range(3, 4), first_step=3)
    assert _steps(path) == [0, 1, 2, 3]
    assert f"{path}:4" in caplog.text


def test_values_that_are_not_finite_are_written_as_strict_json(path: Path) -> None:
    with MetricsLog(path) as log:
        log.append(0, {"train/loss": math.nan, "train/gradient_norm": math.inf})
    values = next(iter(read_metrics(path))).values
    assert math.isnan(values["train/loss"])
    assert values["train/gradient_norm"] == math.inf
    json.loads(path.read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "line",
    [
        b'{"epoch": 3}',
        b'{"step": 1, "time": Infinity, "values": {}}',
        b'{"step": 1, "time": 1.0, "values": {"train/loss": 1' + b"0" * 400 + b"}}",
        b"[" * 100_000,
        b"\xff",
    ],
    ids=lambda line: repr(line[:40]),
)
def test_a_line_that_is_not_a_record_is_refused_with_name_and_line(line: bytes, path: Path) -> None:
    path.write_bytes(b'{"step": 1, "time": 1.0, "values": {}}\n' + line + b"\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: .*is not a metrics record"):
        list(read_metrics(path))


@pytest.mark.parametrize("name", ["loss", "training/loss", "train/", "train/loss@1", "train//loss"])
def test_a_name_without_a_known_section_is_refused(name: str, path: Path) -> None:
    with (
        MetricsLog(path) as log,
        pytest.raises(ValueError, match="one of train, val, test, adapt, best, simulated, perf, comm, system"),
    ):
        log.append(0, {name: 1.0})


def _tags(numbers: Iterable[int]) -> list[Record]:
    return [Tags({"n": str(n)}) for n in numbers]


@pytest.fixture
def spool_path(tmp_path: Path) -> Path:
    return tmp_path / "tracking-spool.jsonl"


ACTIONS = st.tuples(st.sampled_from(["append", "prepend", "take", "keep even", "reopen"]), st.integers(1, 4))


@given(st.lists(ACTIONS, max_size=12))
def test_a_spool_is_a_list_in_a_file_that_exists_only_while_records_are_pending(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    path = tmp_path_factory.mktemp("spool") / "tracking-spool.jsonl"
    spool, expected, fresh, whole = Spool(path), list[int](), itertools.count(), True
    for action, count in actions:
        new = [next(fresh) for _ in range(count)]
        match action:
            case "append":
                spool.append(_tags(new))
                expected += new
            case "prepend":
                spool.prepend(_tags(new))
                expected, whole = new + expected, True
            case "take" if spool.pending:
                taken, position = spool.head(count)
                spool.advance(position)
                assert taken == _tags(expected[:count])
                expected = expected[count:]
                whole = not expected
            case "keep even" if spool.pending:
                spool.keep(lambda record: isinstance(record, Tags) and int(record.values["n"]) % 2 == 0)
                expected, whole = [number for number in expected if number % 2 == 0], True
            case "reopen" if whole:  # a later process has the whole file, including the records that were already read
                spool = Spool(path)
        assert spool.pending == bool(expected)
        assert not expected or spool.head(None)[0] == _tags(expected)
    assert path.exists() == spool.pending


def test_a_later_process_continues_the_spool_without_an_incomplete_line(spool_path: Path) -> None:
    Spool(spool_path).append(_tags([1]))
    with spool_path.open("a") as file:
        file.write('{"kind": "ta')
    spool = Spool(spool_path)
    spool.append(_tags([2]))
    assert spool.head(None)[0] == _tags([1, 2])


def test_a_line_that_is_not_a_record_is_dropped_and_named(spool_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool_path.write_text("what is this\n")
    spool = Spool(spool_path)
    spool.append(_tags([1]))
    assert spool.head(None)[0] == _tags([1])
    assert f"{spool_path}: line dropped" in caplog.text


def test_a_file_that_another_process_truncates_is_an_error_not_an_endless_loop(spool_path: Path) -> None:
    spool = Spool(spool_path)
    spool.append(_tags([1, 2]))
    spool_path.write_text("")
    with pytest.raises(OSError, match="ends at byte 0 instead of"):
        spool.head(None)


TIMEOUT_S = 30.0


def _writer(store: Store, tmp_path: Path, queue_size: int = 1000) -> tuple[BackgroundWriter, Path]:
    path = tmp_path / "tracking-spool.jsonl"
    return BackgroundWriter(store, Spool(path), queue_size=queue_size, pace=FAST), path


@pytest.mark.parametrize("failures", [0, 1, 2, 3])
def test_a_store_that_recovers_gets_every_record_once_and_in_order(failures: int, tmp_path: Path) -> None:
    store = FakeStore(open_failures=max(0, failures - 1), write_failures=failures)
    writer, spool = _writer(store, tmp_path, queue_size=2000)
    for record in _tags(range(5)):
        writer.put(record)
    writer.start()
    assert failures == 0 or store.failed.wait(TIMEOUT_S)
    for record in _tags(range(5, 1200)):
        writer.put(record)
    writer.finish(TIMEOUT_S)
    assert store.written == _tags(range(1200))
    assert store.opens == max(1, failures)
    assert not spool.exists()


def test_a_store_may_fail_any_number_of_times(tmp_path: Path) -> None:
    store = FakeStore(open_failures=1100)
    writer = BackgroundWriter(store, Spool(tmp_path / "spool"), queue_size=1, pace=Pace(0.0, 1e-9, 1e-9))
    writer.put(_tags([1])[0])
    writer.start()
    wait_until(lambda: bool(store.written))
    writer.finish(TIMEOUT_S)
    assert store.written == _tags([1])


def test_an_unavailable_store_leaves_all_records_in_the_spool(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = FakeStore(open_failures=-1)
    writer, spool = _writer(store, tmp_path)
    writer.start()
    for record in _tags(range(10)):
        writer.put(record)
    writer.finish(TIMEOUT_S)
    assert Spool(spool).head(None)[0] == _tags(range(10))
    assert caplog.text.count("tracking records go to") == 1, "a warning per failure would flood the log"
    assert "record of this run is incomplete (tracking store fake: no route to store)" in caplog.text
    assert str(spool) in caplog.text


@pytest.mark.parametrize("failures", [0, 2])
def test_a_full_queue_writes_to_the_spool_instead_of_blocking(failures: int, tmp_path: Path) -> None:
    store = GatedStore(write_failures=failures)
    writer, spool = _writer(store, tmp_path, queue_size=2)
    writer.put(_tags(range(1))[0])
    writer.start()
    assert store.entered.wait(TIMEOUT_S)
    for record in _tags(range(1, 10)):
        writer.put(record)  # a call that waited for the store would hang here
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
    writer.finish(timeout_s=0.01)
    assert Spool(spool).head(None)[0] == _tags(range(4))
    assert "did not answer in time" in caplog.text
    store.gate.set()


def test_a_spool_that_cannot_be_written_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "gone" / "tracking-spool.jsonl"
    writer = BackgroundWriter(FakeStore(open_failures=-1), Spool(path), queue_size=2, pace=FAST)
    for record in _tags(range(5)):
        writer.put(record)
    writer.start()
    writer.finish(TIMEOUT_S)
    assert "tracking records are being lost" in caplog.text
    assert "5 tracking records were lost" in caplog.text


def test_an_abandoned_writer_does_not_open_the_store_any_more(tmp_path: Path) -> None:
    store = FakeStore()
    writer, spool = _writer(store, tmp_path)
    with Spool(spool).lock():
        writer.start()
        writer.put(Tags({"n": "1"}))
        writer.finish(timeout_s=0.01)
    writer._thread.join(TIMEOUT_S)
    assert store.opens == 0
    assert Spool(spool).head(None)[0] == [Tags({"n": "1"})]
