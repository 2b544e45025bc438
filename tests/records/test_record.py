"""The record of a run: parameters, artifacts, and final and best metrics."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.records.provenance import Provenance
from runner.records.record import Record, summary_tags
from runner.records.run_directory import RunDirectory
from runner.records.summary import Summary
from runner.tracking import NullTracker, RunInfo


class NotingTracker(NullTracker):
    """Records parameters and artifacts."""

    def __init__(self) -> None:
        self.params: Mapping[str, Any] = {}
        self.artifacts: list[str] = []

    def log_params(self, params: Mapping[str, Any]) -> None:
        self.params = params

    def log_artifact(self, path: Path, folder: str = "") -> None:
        self.artifacts.append(f"{folder}/{path.name}")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    with RunDirectory.open(tmp_path / "run", resume=False) as directory:
        yield directory


def record_into(directory: RunDirectory, tracker: NotingTracker) -> Record:
    return Record(directory, tracker, RunInfo(directory.run_id, "a run", directory.path))


def test_parameters_decide_the_outcome_and_the_file_is_complete(directory: RunDirectory) -> None:
    tracker = NotingTracker()
    record = record_into(directory, tracker)
    no_parameters = {"tracking": {"uri": None}, "resume": None, "trace": True, "trace_skip": 1, "trace_steps": 2}
    record.configuration({"seed": 1, "model": {"name": "mlp"}, **no_parameters})
    record.close("finished")
    assert tracker.params == {"seed": 1, "model": {"name": "mlp"}}
    assert tracker.artifacts == ["/config.yaml"]
    assert not directory.shown_config_yaml.exists()


def test_the_file_that_is_recorded_has_no_secrets(directory: RunDirectory) -> None:
    tracker = NotingTracker()
    record = record_into(directory, tracker)
    record.configuration({"seed": 1, "data": {"token": "hunter2", "name": "mine"}})
    record.close("finished")
    assert tracker.artifacts == ["/config.yaml"]
    assert directory.shown_config_yaml.read_text() == "seed: 1\ndata:\n  token: '[redacted]'\n  name: mine\n"


def test_decisions_are_a_file_and_staleness_a_picture_and_a_table(directory: RunDirectory) -> None:
    tracker = NotingTracker()
    record = record_into(directory, tracker)
    record.decided({"staleness": [{"0": 2}], "dropped_pushes": [0]})
    record.close("finished")
    assert tracker.artifacts == ["/asynchronous.json", "plots/staleness.png", "plots/staleness.csv"]
    assert json.loads(directory.asynchronous_json.read_text()) == {"staleness": [{"0": 2}], "dropped_pushes": [0]}


def test_without_pictures_tables_are_left(directory: RunDirectory) -> None:
    tracker = NotingTracker()
    record = Record(directory, tracker, RunInfo(directory.run_id, "a run", directory.path), pictures=False)
    record.plots(np.eye(2, dtype=np.int64), ("cat", "dog"))
    record.decided({"staleness": [{"0": 2}]})
    record.close("finished")
    assert tracker.artifacts == ["/asynchronous.json", "plots/staleness.csv"]
    assert [path.name for path in directory.plots.iterdir()] == ["staleness.csv"]


def test_other_decisions_are_a_file_and_no_decisions_are_none(directory: RunDirectory) -> None:
    tracker = NotingTracker()
    record = record_into(directory, tracker)
    record.decided({})
    record.decided({"contributors": [1]})
    record.close("finished")
    assert tracker.artifacts == ["/asynchronous.json"]


def test_best_is_the_lowest_loss_and_the_highest_accuracy_and_final_the_last_of_all(directory: RunDirectory) -> None:
    record = record_into(directory, NotingTracker())
    for step, (loss, accuracy) in enumerate([(0.5, 0.8), (0.2, 0.9), (0.3, 0.7)]):
        record.metrics(step, {"test/loss": loss, "test/accuracy": accuracy, "perf/step_time_s": loss})
    final, best = record.final_and_best()
    record.close("finished")
    assert final == {"test/loss": 0.3, "test/accuracy": 0.7, "perf/step_time_s": 0.3}
    assert best == {"test/loss": 0.2, "test/accuracy": 0.9}


SUMMARY = Summary("0123", "failed", "", "/runs/1", "single", 1, {"python": "3.11.7", "numpy": "2.3.0"}, "Linux", "CPU")


def test_known_facts_are_tags() -> None:
    known = {
        "runner.run_dir": "/runs/1",
        "runner.cpu_model": "CPU",
        "runner.system": "Linux",
        "runner.versions": "python 3.11.7, numpy 2.3.0",
    }
    assert summary_tags(SUMMARY) == known
    more = replace(
        SUMMARY, git_commit="c0ffee", emulated="slow", repeats="4567", provenance=Provenance("runner x", "/", 2, 8)
    )
    assert summary_tags(more) == known | {
        "mlflow.source.git.commit": "c0ffee",
        "runner.emulated": "slow",
        "runner.repeats": "4567",
        "runner.command_line": "runner x",
        "runner.working_directory": "/",
        "runner.cores": "2",
        "runner.memory_bytes": "8",
    }
