"""data.json: what is kept of the data of a run, and in what they can differ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from runner.data.dataset import Facts
from runner.errors import DataError
from runner.records.data_facts import FACTS_FILE, difference, read_facts, write_facts

FACTS = Facts((1, 2, 3), ("cat", "dög"), 8, 4, 2)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_facts(tmp_path) is None
    write_facts(tmp_path, FACTS)
    assert read_facts(tmp_path) == FACTS


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 2},
        {"shape": [1, 2]},
        {"shape": ["a", 2, 3]},
        {"class_names": 3},
        {"colour": 1},
        {"train_examples": "x"},
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: dict[str, object]) -> None:
    write_facts(tmp_path, FACTS)
    path = tmp_path / FACTS_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(DataError, match=r"data\.json is damaged: .*; expected version 1, shape, class_names"):
        read_facts(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FACTS_FILE).write_text(text)
    with pytest.raises(DataError, match=r"data\.json is damaged"):
        read_facts(tmp_path)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (FACTS, ""),
        (replace(FACTS, test_examples=9), ""),
        (replace(FACTS, shape=(3, 2, 3)), "images are (3, 2, 3), in training they were (1, 2, 3)"),
        (replace(FACTS, class_names=("cat",)), "there are 1 classes, in training there were 2"),
        (replace(FACTS, class_names=("cat", "elk")), "class 1 is 'elk', in training it was 'dög'"),
    ],
)
def test_data_of_another_kind_are_told(now: Facts, expected: str) -> None:
    assert difference(now, FACTS) == expected
