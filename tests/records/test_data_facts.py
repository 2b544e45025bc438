"""data.json: the stored facts of the data of a run, and their changes."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.data.dataset import Facts, Normalisation
from runner.data.synthetic import Synthetic
from runner.errors import DataError
from runner.records.data_facts import (
    FACTS_FILE,
    DataRecord,
    changes,
    difference,
    read_record,
    record_of,
    write_record,
)

FACTS = Facts((1, 2, 3), ("cat", "dög"), 8, 4, 2)
KNOWN = Normalisation(255.0, (0.1,), (0.3,))
RECORD = DataRecord(FACTS, KNOWN)


def test_a_written_record_is_read_back(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    write_record(tmp_path, RECORD)
    assert read_record(tmp_path) == RECORD


@dataclass
class PluginData(Synthetic):
    """A dataset whose facts and normalisation are arrays, as those of a plugin can be."""

    mean: Any = (0.25,)

    def facts(self) -> Facts:
        facts = super().facts()
        count: Any = np.int64(facts.train_examples)
        shape: Any = np.array([3, 8, 8])
        return replace(facts, shape=shape, train_examples=count)

    def normalisation(self) -> Normalisation:
        scale: Any = np.float32(1.0)
        std: Any = np.array([0.5, 0.25, 0.125], np.float32)
        return Normalisation(scale, self.mean, std)


def test_numbers_of_arrays_are_kept_as_plain_ones(tmp_path: Path) -> None:
    """One mean for all channels, and a standard deviation for each."""
    record = record_of(PluginData())
    assert record.normalisation == Normalisation(1.0, (0.25,), (0.5, 0.25, 0.125))
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record


@pytest.mark.parametrize("mean", [None, "x", (0.1, 0.2), (float("nan"),), np.zeros((3, 2))])
def test_impossible_facts_are_refused_before_they_are_stored(mean: Any) -> None:
    with pytest.raises(DataError, match=r"data=synthetic: .*; came scale=1\.0"):
        record_of(PluginData(mean=mean))


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        ({"version": 2}, "version: 2, expected 1"),
        ({"shape": [1, 2]}, r"shape: \[1, 2\], expected a list of at least 3 of at most 3"),
        ({"colour": 1}, r"unknown \['colour'\]"),
        ({"normalisation": {"scale": 255.0, "mean": [0.1], "std": [0.0]}}, "normalisation is not a scale"),
        ({"normalisation": {"scale": 255.0, "mean": ["nan"], "std": [0.3]}}, "normalisation is not a scale"),
        ({"normalisation": {"scale": 255.0, "mean": [0.1, 0.2], "std": [0.3, 0.3]}}, "normalisation is not a scale"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: dict[str, object], fault: str) -> None:
    write_record(tmp_path, RECORD)
    path = tmp_path / FACTS_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(DataError, match=rf"data\.json is damaged: {fault}.*; without the file"):
        read_record(tmp_path)


def test_a_file_of_before_knows_no_normalisation(tmp_path: Path) -> None:
    write_record(tmp_path, RECORD)
    document = json.loads((tmp_path / FACTS_FILE).read_text())
    del document["normalisation"]
    (tmp_path / FACTS_FILE).write_text(json.dumps(document))
    assert read_record(tmp_path) == DataRecord(FACTS, None)


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
def test_data_of_another_kind_are_described(now: Facts, expected: str) -> None:
    assert difference(now, FACTS) == expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (RECORD, ""),
        (DataRecord(FACTS, None), ""),
        (DataRecord(FACTS, replace(KNOWN, mean=(0.1 + 1e-15,))), ""),
        (DataRecord(replace(FACTS, shape=(3, 2, 3)), KNOWN), "images are (3, 2, 3), in training they were (1, 2, 3)"),
        (
            DataRecord(replace(FACTS, train_examples=7, test_examples=5), KNOWN),
            "there are 7 train examples, there were 8; there are 5 test examples, there were 4",
        ),
        (DataRecord(FACTS, replace(KNOWN, scale=1.0)), "stored pixels are divided by 1, they were divided by 255"),
        (DataRecord(FACTS, replace(KNOWN, mean=(0.2,))), "the mean of their channels is 0.2, it was 0.1"),
        (
            DataRecord(FACTS, replace(KNOWN, std=(0.3, 0.4))),
            "the deviation of their channels is 0.3, 0.4, it was 0.3",
        ),
    ],
)
def test_changes_of_data_are_described(now: DataRecord, expected: str) -> None:
    assert changes(now, RECORD) == expected
