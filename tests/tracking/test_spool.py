import logging
from pathlib import Path

import pytest

from runner.tracking.records import Tags
from runner.tracking.spool import Spool


def _tags(*numbers: int) -> list[Tags]:
    return [Tags({"n": str(n)}) for n in numbers]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tracking-spool.jsonl"


def test_records_leave_in_the_order_they_came(path: Path) -> None:
    spool = Spool(path)
    spool.append(_tags(3, 4))
    spool.prepend(_tags(1, 2))
    first, position = spool.head(3)
    spool.advance(position)
    spool.append(_tags(5))
    rest, _ = spool.head(None)
    assert (first, rest) == (_tags(1, 2, 3), _tags(4, 5))


def test_the_file_exists_only_while_records_wait(path: Path) -> None:
    spool = Spool(path)
    assert not path.exists()
    spool.append(_tags(1))
    assert path.exists()
    spool.advance(spool.head(None)[1])
    assert not path.exists()
    assert not spool.pending


def test_prepending_keeps_only_pending_records(path: Path) -> None:
    spool = Spool(path)
    spool.append(_tags(1, 2))
    spool.advance(spool.head(1)[1])
    spool.prepend(_tags(9))
    assert spool.head(None)[0] == _tags(9, 2)


def test_a_later_process_continues_it_without_the_line_a_kill_cut_short(path: Path) -> None:
    Spool(path).append(_tags(1))
    with path.open("a") as file:
        file.write('{"kind": "ta')
    spool = Spool(path)
    spool.append(_tags(2))
    assert spool.head(None)[0] == _tags(1, 2)


def test_a_line_that_is_no_record_is_dropped_and_named(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text("what is this\n")
    spool = Spool(path)
    spool.append(_tags(1))
    with caplog.at_level(logging.WARNING):
        assert spool.head(None)[0] == _tags(1)
    assert f"{path}: line dropped" in caplog.text


def test_a_file_cut_from_outside_is_an_error_not_an_endless_loop(path: Path) -> None:
    spool = Spool(path)
    spool.append(_tags(1, 2))
    path.write_text("")
    with pytest.raises(OSError, match="ends at byte 0 instead of"):
        spool.head(None)


def test_keep_drops_the_others(path: Path) -> None:
    spool = Spool(path)
    spool.append(_tags(1, 2))
    spool.keep(lambda record: record == Tags({"n": "2"}))
    assert spool.head(None)[0] == _tags(2)
    spool.keep(lambda record: False)
    assert not path.exists()
