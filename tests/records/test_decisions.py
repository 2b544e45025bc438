"""Decisions of a run on the disk: whole lines, continued from where a process begins, counted by worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.errors import SecurityError
from runner.records.decisions import Decisions, dropped_by_worker, read_decisions

LINES = [
    {"step": 0, "dropped": [{"worker": 2, "examples": 5}]},
    {"step": 1, "dropped": []},
    {"step": 2, "dropped": [{"worker": 10, "examples": 4}, {"worker": 2, "examples": 5}]},
]


def test_every_name_has_a_file_with_a_line_for_each_decision(tmp_path: Path) -> None:
    decisions = Decisions(tmp_path, first_step=0)
    assert decisions.write({}) == []
    assert decisions.write({"x": LINES[:1], "y": []}) == [tmp_path / "x.jsonl", tmp_path / "y.jsonl"]
    decisions.write({"x": LINES})
    assert read_decisions(tmp_path / "x.jsonl") == LINES
    assert read_decisions(tmp_path / "y.jsonl") == []


def test_a_later_process_forgets_the_steps_that_it_makes_again(tmp_path: Path) -> None:
    Decisions(tmp_path, first_step=0).write({"x": LINES})
    later = Decisions(tmp_path, first_step=2)
    for count in (1, 2):
        again: list[dict[str, Any]] = [{"step": 2 + i, "own": True} for i in range(count)]
        later.write({"x": again})
        assert read_decisions(tmp_path / "x.jsonl") == LINES[:2] + again


def test_a_process_that_begins_anew_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("damaged")
    Decisions(tmp_path, first_step=0).write({"x": LINES})
    assert read_decisions(tmp_path / "x.jsonl") == LINES


@pytest.mark.parametrize("content", ["{}", '{"step": "1"}', "[1]", '{"step": 1', '{"step": true}'])
def test_anything_but_objects_with_a_step_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"step": 0}\n' + content)
    with pytest.raises(ValueError, match=r"line 2 is not an object with a step|Expecting"):
        read_decisions(path)


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SecurityError, match="symbolic link"):
        read_decisions(tmp_path / "x.jsonl")


def test_what_was_dropped_is_counted_by_worker(tmp_path: Path) -> None:
    assert dropped_by_worker(tmp_path / "x.jsonl") == ({}, {})
    Decisions(tmp_path, first_step=0).write({"x": LINES})
    shares, examples = dropped_by_worker(tmp_path / "x.jsonl")
    assert shares == {"worker-2": 2, "worker-10": 1}
    assert examples == {"worker-2": 10, "worker-10": 4}
