"""Stored runs: the search for them, facts about their data, their plugins, and their pending tracking records."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.data import Synthetic
from runner.data.dataset import Facts, Normalisation
from runner.errors import ConfigError, DataError
from runner.fields import Field
from runner.records.data_facts import (
    FACTS_FILE,
    DataRecord,
    changes,
    difference,
    read_record,
    record_of,
    splits_of,
    write_record,
)
from runner.records.late_tracking import LateRecords, late_runs, write_late
from runner.records.run_directory import SUMMARY_FILE, RunDirectory
from runner.records.stored_run import PLUGINS_FILE, StoredRun, find_run, read_plugins, read_run, write_plugins
from runner.records.summary import Summary
from runner.tracking.records import End
from runner.tracking.replay import Replay
from runner.tracking.spool import SPOOL_FILE
from runner.tracking.writer import StoreUnavailableError


def make_run(path: Path, *, starts: int = 1) -> str:
    """Create the directory of a run that was killed; return the run's id."""
    for start in range(starts):
        with RunDirectory.open(path, resume=start > 0) as directory:
            directory.config_yaml.touch()
    return directory.run_id


def nowhere(run_id: str) -> list[Path]:
    """Return no directories, as the search in a tracking store without runs does."""
    return []


def test_a_run_is_read_from_its_directory(tmp_path: Path) -> None:
    run_id = make_run(tmp_path / "run", starts=3)
    assert find_run("run", tmp_path, nowhere) == StoredRun(tmp_path / "run", run_id, 3, None)


def test_a_summary_is_read_if_it_exists(tmp_path: Path) -> None:
    run_id = make_run(tmp_path)
    summary = Summary(run_id, "failed", "", "", "single", 1, {}, "", "")
    summary.write(tmp_path / "summary.json")
    assert read_run(tmp_path).summary == summary


@pytest.mark.parametrize(
    "place",
    [
        *("outputs/2026-01-31/12-00-00", "outputs/mine", "multirun/2026-01-31/12-00-00/3"),
        "multirun/table/whitepaper_batch/one_worker/seed-1.0123abcd",
    ],
)
def test_an_id_is_found_among_the_outputs(place: str, tmp_path: Path) -> None:
    run_id = make_run(tmp_path / place)
    make_run(tmp_path / "outputs/2026-01-31/other")
    assert find_run(run_id, tmp_path, nowhere).path == tmp_path / place
    assert find_run(run_id[:8], tmp_path, nowhere).path == tmp_path / place


def test_an_unknown_id_is_looked_up_in_the_store(tmp_path: Path) -> None:
    run_id = make_run(tmp_path / "elsewhere")
    requested = []

    def store(text: str) -> list[Path]:
        requested.append(text)
        return [tmp_path / "elsewhere"]

    assert find_run(run_id, tmp_path, store).run_id == run_id
    assert requested == [run_id]


@pytest.mark.parametrize(
    ("text", "directories", "message"),
    [
        ("absent", [], r"absent: no such directory; expected the directory of a run, or a run id"),
        ("abcd", [], r"abcd: no run with this id below .*, in outputs or multirun, or in the tracking store"),
        ("abcd", ["gone"], r"abcd: the directory of this run no longer exists: gone"),
        ("abcd", ["a", "b"], r"abcd: several run ids begin with it: a, b; give more digits"),
        ("empty", [], r"empty holds no config\.yaml: not the directory of a run"),
    ],
)
def test_a_text_that_names_no_run_is_refused(text: str, directories: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=message):
        find_run(text, tmp_path, lambda run_id: [Path(each) for each in directories])


def test_the_search_for_a_run_skips_a_damaged_run(tmp_path: Path) -> None:
    run_id = make_run(tmp_path / "outputs/day/sound")
    damaged, linked = (tmp_path / f"outputs/day/{name}/run.json" for name in ("damaged", "linked"))
    make_run(damaged.parent)
    damaged.write_text("{")
    linked.parent.mkdir()
    linked.symlink_to(damaged)
    assert find_run(run_id, tmp_path, nowhere).run_id == run_id


def test_stored_plugins_are_read_back_and_an_empty_list_differs_from_no_list(tmp_path: Path) -> None:
    assert read_plugins(tmp_path) is None
    write_plugins(tmp_path, {"/x/m.py": "a" * 64})
    assert read_plugins(tmp_path) == {"/x/m.py": "a" * 64}
    write_plugins(tmp_path, {})
    assert read_plugins(tmp_path) == {}
    (tmp_path / PLUGINS_FILE).unlink()
    Summary("0123", "failed", "", "", "", 1, {}, "", "", plugins={"pack.m": "b" * 64}).write(tmp_path / SUMMARY_FILE)
    assert read_plugins(tmp_path) == {"pack.m": "b" * 64}, "as an earlier version kept them"


@pytest.mark.parametrize("text", ["", '{"m": 3}'])
def test_a_damaged_plugins_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / PLUGINS_FILE).write_text(text)
    with pytest.raises(DataError, match=r"plugins\.json is damaged: .*; expected references and the SHA-256"):
        read_plugins(tmp_path)


FACTS = replace(Facts.labelled((1, 2, 3), ("cat", "dög"), 8, 4), val_examples=2)
KNOWN = Normalisation(255.0, (0.1,), (0.3,))
RECORD = DataRecord(FACTS, KNOWN)


def test_a_written_record_is_read_back(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    write_record(tmp_path, RECORD)
    assert read_record(tmp_path) == RECORD


@dataclass
class PluginData(Synthetic):
    """A dataset whose facts and normalisation contain arrays, as those of a plugin may."""

    mean: Any = (0.25,)

    def facts(self) -> Facts:
        facts = super().facts()
        count: Any = np.int64(facts.train_examples)
        shape: Any = np.array([3, 8, 8])
        return replace(facts, fields={**facts.fields, "x": Field(shape)}, train_examples=count)

    def normalisation(self) -> Normalisation:
        scale: Any = np.float32(1.0)
        std: Any = np.array([0.5, 0.25, 0.125], np.float32)
        return Normalisation(scale, self.mean, std)


def test_numpy_values_are_stored_as_plain_numbers(tmp_path: Path) -> None:
    """The dataset has one mean for all channels, and a standard deviation for each channel."""
    record = record_of(PluginData())
    assert record.normalisation == Normalisation(1.0, (0.25,), (0.5, 0.25, 0.125))
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record


@pytest.mark.parametrize("mean", [None, "x", (0.1, 0.2), (float("nan"),), np.zeros((3, 2))])
def test_impossible_facts_are_refused_before_they_are_stored(mean: Any) -> None:
    with pytest.raises(DataError, match=r"data=synthetic: .*; found scale=1\.0"):
        record_of(PluginData(mean=mean))


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        ({"version": 2}, "version: 2, expected 1"),
        ({"fields": {"x": {"shape": 3}}}, r"fields\[x\]\.shape: 3, expected a list"),
        ({"colour": 1}, r"unknown \['colour'\]"),
        ({"normalisation": {"scale": 255.0, "mean": [0.1], "std": [0.0]}}, "normalisation: expected a scale"),
        ({"normalisation": {"scale": 255.0, "mean": ["nan"], "std": [0.3]}}, "normalisation: expected a scale"),
        ({"normalisation": {"scale": 255.0, "mean": [0.1, 0.2], "std": [0.3, 0.3]}}, "normalisation: expected a scale"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: dict[str, object], fault: str) -> None:
    write_record(tmp_path, RECORD)
    path = tmp_path / FACTS_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(DataError, match=rf"data\.json is damaged: {fault}.*; restore the file"):
        read_record(tmp_path)


def test_a_file_of_an_earlier_version_may_lack_the_normalisation_or_the_fields(tmp_path: Path) -> None:
    write_record(tmp_path, RECORD)
    document = json.loads((tmp_path / FACTS_FILE).read_text())
    normalisation, fields = document.pop("normalisation"), document.pop("fields")
    (tmp_path / FACTS_FILE).write_text(json.dumps(document | {"fields": fields}))
    assert read_record(tmp_path) == DataRecord(FACTS, None)
    labelled_images = {"shape": [1, 2, 3], "class_names": ["cat", "dög"], "normalisation": normalisation}
    (tmp_path / FACTS_FILE).write_text(json.dumps(document | labelled_images))
    assert read_record(tmp_path) == RECORD


def with_classes(*names: str) -> Facts:
    return Facts.labelled((1, 2, 3), names, 8, 4)


LARGER = Facts.labelled((3, 2, 3), ("cat", "dög"), 8, 4)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (FACTS, ""),
        (replace(FACTS, test_examples=9), ""),
        (LARGER, "the field x is float[3,2,3], in training it was float[1,2,3]"),
        (with_classes("cat"), "there are 1 names of a class, in training there were 2"),
        (with_classes("cat", "elk"), "class 1 is 'elk', in training it was 'dög'"),
        (replace(FACTS, fields={"x": FACTS.fields["x"]}), "the field y is None, in training it was int64[]"),
    ],
)
def test_a_different_kind_of_data_is_described(now: Facts, expected: str) -> None:
    assert difference(now, FACTS) == expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (RECORD, ""),
        (DataRecord(FACTS, None), ""),
        (DataRecord(FACTS, replace(KNOWN, mean=(0.1 + 1e-15,))), ""),
        (DataRecord(LARGER, KNOWN), "the field x is float[3,2,3], in training it was float[1,2,3]"),
        (
            DataRecord(replace(FACTS, train_examples=7, test_examples=5), KNOWN),
            "there are 7 train examples, in training there were 8; there are 5 test examples, in training there were 4",
        ),
        (DataRecord(FACTS, replace(KNOWN, scale=1.0)), "stored pixels are divided by 1, in training by 255"),
        (DataRecord(FACTS, replace(KNOWN, mean=(0.1 + 1e-9,))), "the channel mean is 0.100000001, in training 0.1"),
        (DataRecord(FACTS, replace(KNOWN, mean=(0.2,))), "the channel mean is 0.2, in training 0.1"),
        (DataRecord(FACTS, replace(KNOWN, std=(0.3, 0.4))), "the channel deviation is 0.3, 0.4, in training 0.3"),
    ],
)
def test_changes_of_data_are_described(now: DataRecord, expected: str) -> None:
    assert changes(now, RECORD) == expected


class FakeReplay(Replay):
    """A replay that reports three written records for each run, or raises the error that ``failing`` has for it."""

    def __init__(self, failing: dict[str, Exception] | None = None) -> None:
        super().__init__()
        self.requested: list[tuple[str, str | None]] = []
        self.ends: list[End | None] = []
        self._failing = failing or {}

    def run(self, run_dir: Path, uri: str | None, end: End | None) -> int:
        self.requested.append((run_dir.name, uri))
        self.ends.append(end)
        if run_dir.name in self._failing:
            raise self._failing[run_dir.name]
        return 3


def late_run(path: Path, configuration: str = "tracking: {uri: null}\n") -> Path:
    path.mkdir(parents=True)
    (path / SPOOL_FILE).write_text("")
    (path / "config.yaml").write_text(configuration)
    return path


def test_runs_with_a_spool_are_found_in_and_below_a_folder(tmp_path: Path) -> None:
    runs = [late_run(tmp_path / "a"), late_run(tmp_path / "b" / "0")]
    (tmp_path / "c").mkdir()
    assert late_runs(tmp_path) == runs
    assert late_runs(runs[0]) == runs[:1]


def test_an_error_of_one_run_does_not_stop_the_others(tmp_path: Path) -> None:
    away, full = StoreUnavailableError("no answer"), OSError("disk full")
    replay = FakeReplay({"0": away, "1": full, "3": away})
    runs = [late_run(tmp_path / str(number)) for number in range(4)] + [late_run(tmp_path / "4", "[")]
    outcome = write_late(runs, replay)
    assert outcome.records == {runs[2]: 3}
    *reasons, damaged = outcome.left.items()
    assert reasons == [("no answer", [runs[0], runs[3]]), ("disk full", [runs[1]])]
    assert "not plain YAML" in damaged[0]


def test_a_run_that_is_still_running_is_skipped(tmp_path: Path) -> None:
    replay = FakeReplay()
    run = late_run(tmp_path / "run")
    with RunDirectory.open(run, resume=False) as directory:
        directory.store_configuration(b"tracking: {uri: null}\n")
        assert write_late([run], replay) == LateRecords(running=[run])
    assert replay.requested == []
    assert write_late([run], replay) == LateRecords({run: 3})


def test_no_run_starts_while_its_records_are_written(tmp_path: Path) -> None:
    run = late_run(tmp_path / "run")

    class Starting(FakeReplay):
        def run(self, run_dir: Path, uri: str | None, end: End | None) -> int:
            with RunDirectory.open(run_dir, resume=False):
                return super().run(run_dir, uri, end)

    assert write_late([run], Starting()) == LateRecords(running=[run])


@pytest.mark.parametrize(
    ("configuration", "uri"), [("tracking: {uri: 'http://a:b@c'}", "http://a:b@c"), ("tracking: 1", None), ("{}", None)]
)
def test_only_the_store_is_read_from_the_configuration(tmp_path: Path, configuration: str, uri: str | None) -> None:
    replay = FakeReplay()
    write_late([late_run(tmp_path / "run", configuration)], replay)
    assert replay.requested == [("run", uri)]


def test_the_end_of_a_run_is_read_from_its_summary(tmp_path: Path) -> None:
    runs = [late_run(tmp_path / name) for name in ("damaged", "failed", "killed")]
    (runs[0] / SUMMARY_FILE).write_text("{")
    Summary("", "failed", "", "", "", 1, {}, "", "").write(runs[1] / SUMMARY_FILE)
    os.utime(runs[1] / SUMMARY_FILE, (1, 12.5))
    replay = FakeReplay()
    outcome = write_late(runs, replay)
    assert replay.ends == [End("failed", 12_500), None]
    ((why, left),) = outcome.left.items()
    assert left == runs[:1]
    assert "summary.json: cannot be read as JSON" in why


def test_pending_records_are_listed_with_the_command_to_write_them() -> None:
    outcome = LateRecords({Path("/s/0"): 5, Path("/s/1"): 2}, [Path("/s/2")], {"no answer": [Path("/s/3")]})
    assert list(outcome.lines([Path("/s"), Path("/a b")])) == [
        "written to the tracking store: 7 records of 2 runs",
        "skipped, still running: /s/2",
        "warning: tracking records of 1 run are still pending (no answer): /s/3",
        "warning: write them with `runner sync /s '/a b'`",
    ]
    assert list(LateRecords().lines([Path("/s")])) == []


def test_each_split_of_the_data_has_a_digest_that_changes_with_the_split_alone() -> None:
    def digests(data: Synthetic, seed: int = 0, mean: float = 0.5) -> dict[str, str]:
        record = DataRecord(data.facts(), Normalisation(255.0, (mean,), (0.2,)))
        return {each.split: each.digest for each in splits_of(data, seed, record)}

    whole, carved = Synthetic(), Synthetic(val_fraction=0.5)
    plain = digests(whole)
    assert list(plain) == ["train", "test"]
    assert len({*plain.values()}) == 2
    assert digests(whole, seed=1) == plain == digests(Synthetic(cache_dir="/elsewhere", threads=3))
    assert not {*plain.values()} & {*digests(whole, mean=0.6).values()}
    assert not {*plain.values()} & {*digests(Synthetic(data_seed=7)).values()}
    first, second = digests(carved), digests(carved, seed=1)
    assert {split for split in first if first[split] != second[split]} == {"train", "validation"}
    counts = {each.split: each.examples for each in splits_of(carved, 0, DataRecord(carved.facts(), None))}
    assert counts["train"] == counts["validation"] == carved.facts().train_examples / 2
