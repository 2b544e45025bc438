"""Files of decisions: complete lines, continued from the first step of a process, counted by worker."""

from pathlib import Path
from typing import Any

import pytest

from runner.errors import SecurityError
from runner.records.decisions import Decisions, dropped_by_worker, outcome_of, read_decisions

LINES = [
    {"step": 0, "dropped": [{"worker": 2, "examples": 5}]},
    {"step": 1, "dropped": []},
    {"step": 2, "dropped": [{"worker": 10, "examples": 4}, {"worker": 2, "examples": 5}]},
]


def test_every_name_has_a_file_with_a_line_for_each_decision(tmp_path: Path) -> None:
    decisions = Decisions(tmp_path, first_step=0, outcome="abc")
    assert decisions.write({}) == []
    assert decisions.write({"x": LINES[:1], "y": []}) == [tmp_path / "x.jsonl", tmp_path / "y.jsonl"]
    decisions.write({"x": LINES})
    assert read_decisions(tmp_path / "x.jsonl") == LINES
    assert read_decisions(tmp_path / "y.jsonl") == []


def test_a_later_process_forgets_the_steps_that_it_makes_again(tmp_path: Path) -> None:
    Decisions(tmp_path, first_step=0, outcome="abc").write({"x": LINES})
    later = Decisions(tmp_path, first_step=2, outcome="abc")
    for count in (1, 2):
        again: list[dict[str, Any]] = [{"step": 2 + i, "own": True} for i in range(count)]
        later.write({"x": again})
        assert read_decisions(tmp_path / "x.jsonl") == LINES[:2] + again


def test_a_new_run_keeps_no_decisions(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("damaged")
    Decisions(tmp_path, first_step=0, outcome="abc").write({"x": LINES})
    assert read_decisions(tmp_path / "x.jsonl") == LINES


def test_the_first_line_identifies_the_run_and_is_no_decision(tmp_path: Path) -> None:
    Decisions(tmp_path, 0, "abc").write({"x": LINES})
    assert outcome_of(tmp_path / "x.jsonl") == "abc"
    assert (tmp_path / "x.jsonl").read_text().splitlines()[0] == '{"version": 1, "outcome": "abc"}'
    # A run that continues with other limits has another outcome.
    Decisions(tmp_path, 2, "longer").write({"x": []})
    assert (outcome_of(tmp_path / "x.jsonl"), read_decisions(tmp_path / "x.jsonl")) == ("longer", LINES[:2])


@pytest.mark.parametrize("first", ['{"step": 0}', '{"version": 2, "outcome": "abc"}', '{"version": 1, "outcome": 3}'])
def test_a_file_without_such_a_line_is_of_no_known_run(first: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(first)
    assert outcome_of(path) is None


@pytest.mark.parametrize("content", ["{}", '{"step": "1"}', "[1]", '{"step": 1', '{"step": true}'])
def test_anything_but_objects_with_a_step_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"step": 0}\n' + content)
    with pytest.raises(ValueError, match=r"line 2.* expected|no JSON"):
        read_decisions(path)


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SecurityError, match="symbolic link"):
        read_decisions(tmp_path / "x.jsonl")


def test_dropped_shares_are_counted_by_worker(tmp_path: Path) -> None:
    assert dropped_by_worker(tmp_path / "x.jsonl") == ({}, {})
    Decisions(tmp_path, first_step=0, outcome="abc").write({"x": LINES})
    shares, examples = dropped_by_worker(tmp_path / "x.jsonl")
    assert shares == {"worker-2": 2, "worker-10": 1}
    assert examples == {"worker-2": 10, "worker-10": 4}
