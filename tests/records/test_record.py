"""The record of a run: parameters, artifacts and metrics, and the provenance of its code."""

import hashlib
import json
import math
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.records import provenance
from runner.records.provenance import (
    CodeState,
    Provenance,
    code_of,
    command_line,
    provenance_here,
    provenance_tags,
    text_of,
)
from runner.records.record import Record, description, summary_tags
from runner.records.run_directory import RunDirectory
from runner.records.summary import Failure, Summary
from runner.system.machine import usable_cores, usable_memory
from runner.tracking import RunInfo, Tracker
from tests.records.test_summary import git


class NotingTracker(Tracker):
    """A tracker that keeps parameters, metrics, tags and artifacts in memory."""

    def __init__(self) -> None:
        self.params: Mapping[str, Any] = {}
        self.metrics: list[tuple[int, Mapping[str, float]]] = []
        self.tags: dict[str, str] = {}
        self.artifacts: list[str] = []

    def log_params(self, params: Mapping[str, Any]) -> None:
        self.params = params

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics.append((step, metrics))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        self.tags.update(tags)

    def log_artifact(self, path: Path, folder: str = "") -> None:
        self.artifacts.append(f"{folder}/{path.name}")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    with RunDirectory.open(tmp_path / "run", resume=False) as directory:
        yield directory


def record_into(directory: RunDirectory, tracker: NotingTracker) -> Record:
    return Record(directory, tracker, RunInfo(directory.run_id, "a run", directory.path))


def test_only_keys_that_decide_the_outcome_are_parameters(directory: RunDirectory) -> None:
    tracker = NotingTracker()
    record = record_into(directory, tracker)
    no_parameters = {"tracking": {"uri": None}, "resume": None, "trace": True, "trace_skip": 1, "trace_steps": 2}
    record.configuration({"seed": 1, "model": {"name": "mlp"}, **no_parameters})
    record.close("finished")
    assert tracker.params == {"seed": 1, "model": {"name": "mlp"}}
    assert tracker.artifacts == ["/config.yaml"]
    assert not directory.shown_config_yaml.exists()


def test_the_recorded_configuration_has_no_secrets(directory: RunDirectory) -> None:
    tracker = NotingTracker()
    record = record_into(directory, tracker)
    record.configuration({"seed": 1, "data": {"token": "hunter2", "name": "mine"}})
    record.close("finished")
    assert tracker.artifacts == ["/config.yaml"]
    assert directory.shown_config_yaml.read_text() == "seed: 1\ndata:\n  token: '[redacted]'\n  name: mine\n"


def test_decisions_are_written_to_a_file_and_staleness_is_also_plotted(directory: RunDirectory) -> None:
    tracker = NotingTracker()
    record = record_into(directory, tracker)
    record.counts({"staleness": [{"0": 2}], "dropped_pushes": [0]})
    record.close("finished")
    assert tracker.artifacts == ["/asynchronous.json", "plots/staleness.png", "plots/staleness.csv"]
    assert json.loads(directory.asynchronous_json.read_text()) == {"staleness": [{"0": 2}], "dropped_pushes": [0]}


def test_without_pictures_only_tables_are_written(directory: RunDirectory) -> None:
    tracker = NotingTracker()
    record = Record(directory, tracker, RunInfo(directory.run_id, "a run", directory.path), pictures=False)
    record.plots(np.eye(2, dtype=np.int64), ("cat", "dog"))
    record.counts({"staleness": [{"0": 2}]})
    record.close("finished")
    assert tracker.artifacts == ["/asynchronous.json", "plots/staleness.csv"]
    assert [path.name for path in directory.plots.iterdir()] == ["staleness.csv"]


def test_decisions_without_staleness_have_no_plot_and_empty_ones_no_file(directory: RunDirectory) -> None:
    tracker = NotingTracker()
    record = record_into(directory, tracker)
    record.counts({})
    record.counts({"contributors": [1]})
    record.close("finished")
    assert tracker.artifacts == ["/asynchronous.json"]


@pytest.mark.parametrize(("best_step", "kept"), [(None, 0.3), (0, 0.5)], ids=["last", "of the best checkpoint"])
def test_results_are_last_best_and_kept_values(directory: RunDirectory, best_step: int | None, kept: float) -> None:
    record = record_into(directory, NotingTracker())
    for step, (loss, accuracy) in enumerate([(0.5, 0.8), (0.2, 0.9), (0.3, 0.7)]):
        record.metrics(step, {"test/loss": loss, "test/accuracy": accuracy, "perf/step_time_s": loss})
    record.metrics(3, {"train/loss": 0.1})
    record.metrics(2, {"test/loss": 0.3, "test/accuracy": 0.7})
    found = record.results(FAILED_RUN, best_step, lambda metric: metric == "loss")
    record.close("finished")
    assert found.final == {"train/loss": 0.1, "test/loss": 0.3, "test/accuracy": 0.7, "perf/step_time_s": 0.3}
    assert found.best == {"test/loss": 0.2, "test/accuracy": 0.9}
    assert found.headline["test/loss"] == kept
    assert found.headline.keys() - {"train/loss"} == {"test/loss", "test/accuracy"}
    assert found.evaluations == 3


def test_the_best_value_is_a_number_if_any_value_is(directory: RunDirectory) -> None:
    record = record_into(directory, NotingTracker())
    for step, loss in enumerate((math.nan, 0.2, math.nan)):
        record.metrics(step, {"test/loss": loss, "test/accuracy": loss})
    found = record.results(FAILED_RUN, None, lambda metric: metric == "loss")
    record.close("finished")
    assert found.best == {"test/loss": 0.2, "test/accuracy": 0.2}


def test_the_evaluation_at_the_best_step_is_recorded_at_that_step(directory: RunDirectory) -> None:
    tracker = NotingTracker()
    record = record_into(directory, tracker)
    for step, accuracy in enumerate((0.8, 0.9, 0.7)):
        record.metrics(step, {"train/loss": 0.5})
        record.metrics(step, {"val/accuracy": accuracy, "test/accuracy": 0.5, "train/epoch": 1.0})
    record.best(1)
    record.close("finished")
    resumed = NotingTracker()
    record = Record(directory, resumed, RunInfo(directory.run_id, "a run", directory.path, first_step=3))
    record.best(1)
    record.close("finished")
    expected = (1, {"best/val/accuracy": 0.9, "best/test/accuracy": 0.5})
    assert (tracker.metrics[-1], resumed.metrics) == (expected, [expected])
    assert "best/" not in directory.metrics_jsonl.read_text()


VERSIONS = {"python": "3.11.7", "numpy": "2.3.0"}
FAILED_RUN = Summary("0123", "failed", "", "/runs/1", "single", 1, VERSIONS, "Linux", "CPU")
ENDED_RUN = replace(
    FAILED_RUN,
    status="finished",
    steps=1200,
    examples=38_400,
    wall_seconds=2.04,
    changed=["model.name=mlp", "optimizer.lr=0.3", "tracking.uri=x", "trace=true", "hub.token=[redacted]"],
    final={"test/accuracy": 0.92345, "train/loss": 0.5},
    monitor="test/accuracy",
    best_value=0.95,
    best_step=1100,
    weights_sha256="c0ffee",
)


def test_a_description_states_what_was_trained_and_its_result() -> None:
    assert description(ENDED_RUN, "mlp digits single") == (
        "**mlp digits single**, 1 worker(s): finished after 1,200 updates (38,400 examples) in 2.0 s. "
        "Last: test/accuracy 0.9234. Best test/accuracy: 0.95, after 1,100 updates."
        "\n\nChanged: `model.name=mlp`, `optimizer.lr=0.3`, `hub.token=[redacted]`"
    )
    failed = replace(FAILED_RUN, error=Failure("NumericError", "the loss is nan"))
    assert description(failed, "x").endswith(" after 0 updates (0 examples) in 0.0 s. NumericError: the loss is nan")


def test_the_result_is_recorded_with_the_small_files_that_exist(directory: RunDirectory) -> None:
    tracker = NotingTracker()
    record = record_into(directory, tracker)
    for path in (directory.summary_json, directory.log, directory.path / "plugins.json"):
        path.touch()
    record.result(ENDED_RUN, "x")
    assert tracker.tags == {"weights_sha256": "c0ffee", "mlflow.note.content": description(ENDED_RUN, "x")}
    assert tracker.artifacts == ["/summary.json", "/run.log"]
    (directory.path / "data.json").touch()
    record.result(replace(ENDED_RUN, plugins={"mine.py": "abc"}), "x")
    record.close("finished")
    assert tracker.artifacts[2:] == ["/summary.json", "/run.log", "/data.json", "/plugins.json"]


def test_known_facts_become_tags() -> None:
    known = {
        "runner.run_dir": "/runs/1",
        "runner.cpu_model": "CPU",
        "runner.system": "Linux",
        "runner.versions": "python 3.11.7, numpy 2.3.0",
    }
    assert summary_tags(FAILED_RUN) == known
    changed = "model.name=mlp, optimizer.lr=0.3, hub.token=[redacted]"
    assert summary_tags(ENDED_RUN) == known | {"runner.changed": changed}
    origin = Provenance("runner x", "/", 2, 8)
    more = replace(FAILED_RUN, git_commit="c0ffee", emulated="slow", repeats="4567", provenance=origin)
    assert summary_tags(more) == known | {
        "mlflow.source.git.commit": "c0ffee",
        "runner.emulated": "slow",
        "runner.repeats": "4567",
        "runner.command_line": "runner x",
        "runner.working_directory": "/",
        "runner.cores": "2",
        "runner.memory_bytes": "8",
    }


def test_the_command_is_recorded_as_it_can_be_typed_without_its_secrets() -> None:
    line = command_line(["/venv/bin/runner", "parallelism.shard={fc1: column}", "my.token=abc"])
    assert shlex.split(line) == ["/venv/bin/runner", "parallelism.shard={fc1: column}", "my.token=[redacted]"]


def test_the_provenance_has_command_machine_and_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "orig_argv", ["runner", "a b"])
    found, _ = provenance_here()
    assert (found.command_line, found.working_directory) == ("runner 'a b'", str(tmp_path))
    assert (found.cores, found.memory_bytes) == (usable_cores(), usable_memory())
    checkouts = [code.folder for code in found.code]
    project = Path(__file__).parents[2]
    assert checkouts == ([str(project)] if (project / ".git").exists() else [])


def test_repositories_with_equal_names_have_separate_tags() -> None:
    codes = [CodeState(folder, commit * 40, "", 0, []) for folder, commit in (("/a/own", "1"), ("/b/own", "2"))]
    tags = provenance_tags(Provenance("runner", "/home", 2, 1024, codes))
    found = {name: text[0] for name, text in tags.items() if "code" in name}
    assert found == {"runner.code.a/own": "1", "runner.code.b/own": "2"}


def test_tags_contain_the_whole_provenance() -> None:
    changed = CodeState("/home/project", "a" * 40, "b" * 64, 10, ["new.py"])
    assert provenance_tags(Provenance("runner", "/home", 2, 1024, [changed, CodeState("/x/own", "", "", 0, [])])) == {
        "runner.command_line": "runner",
        "runner.working_directory": "/home",
        "runner.cores": "2",
        "runner.memory_bytes": "1024",
        "runner.code.project": f"{'a' * 40}, changed (SHA-256 {'b' * 64}), untracked: new.py",
        "runner.code.own": "no commit",
    }


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a Git repository with one commit, which adds ``code.py``."""
    top = tmp_path / "project"
    top.mkdir()
    git(top, "init", "-q")
    (top / "code.py").write_text("one = 1\n")
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "first")
    return top


def test_commit_changes_and_untracked_files_are_recorded(repository: Path) -> None:
    (repository / "code.py").write_text("one = 2\n")
    (repository / "outputs").mkdir()
    (repository / "outputs" / "a").touch()
    (repository / "new.py").touch()
    (code,) = code_of([repository / "outputs"])
    changes = git(repository, "diff", "HEAD")
    assert code.state.folder == str(repository)
    assert code.state.commit == git(repository, "rev-parse", "HEAD").strip()
    assert code.state.untracked == ["new.py", "outputs/"]
    assert code.state.diff_sha256 == hashlib.sha256(changes.encode()).hexdigest()
    assert code.state.diff_bytes == len(changes)
    assert code.diff == changes
    assert text_of([code]) == f"# changes in {repository} since commit {code.state.commit}\n{changes}"


def test_no_diff_is_kept_without_changes(repository: Path) -> None:
    (code,) = code_of([repository])
    assert (code.state.diff_sha256, code.state.diff_bytes, code.state.untracked) == ("", 0, [])
    assert text_of([code]) == ""


def test_a_long_diff_is_truncated_with_a_note(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "MAX_DIFF_BYTES", 60)
    (repository / "code.py").write_text("one = 2\n" * 100)
    (code,) = code_of([repository])
    assert len(code.diff) == 60
    assert code.state.diff_bytes > 800
    assert text_of([code]).endswith(f"\n# cut: 60 of {code.state.diff_bytes:,} bytes are shown\n")


def test_secrets_are_removed_from_diffs(repository: Path) -> None:
    (repository / "code.py").write_text('token = "abcdef"\n')
    (code,) = code_of([repository])
    assert "abcdef" not in code.diff
    assert "+token = [redacted]" in code.diff


def test_a_repository_is_listed_once_and_ignores_untracked_files(repository: Path) -> None:
    stranger = repository / "environment" / "package.py"
    stranger.parent.mkdir()
    stranger.touch()
    assert code_of([], [stranger]) == []
    both = code_of([repository], [repository / "code.py"])
    assert [code.state.folder for code in both] == [str(repository)]


def test_there_is_no_commit_outside_of_repositories_or_before_the_first_one(tmp_path: Path) -> None:
    assert code_of([tmp_path]) == []
    git(tmp_path, "init", "-q")
    (code,) = code_of([tmp_path])
    assert (code.state.commit, code.state.diff_bytes) == ("", 0)


def test_without_git_no_code_is_recorded(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert code_of([repository], [repository / "code.py"]) == []
