"""Runs resumed with another strategy, with other data, or after a kill at any file operation; and replayed runs."""

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.config.configuration import dump, load_stored
from runner.config.outcome import outcome_hash
from runner.config.schema import Config
from runner.data import Arrays
from runner.data.dataset import Dataset
from runner.errors import ConfigError, DataError
from runner.records.run_directory import holds_run
from runner.records.summary import Summary
from runner.training import preconditions
from runner.training.build import build
from runner.training.run import _Run, run
from tests.data.own_data import small_arrays, write_arrays
from tests.refusal import Capture
from tests.small_runs import small_config, train, typed

LBFGS = ("optimizer=lbfgs", "schedule=constant")
STRATEGIES = (
    ("parallelism=sync_data",),
    ("parallelism=sync_data", "parallelism.combine=parameter_server", "parallelism.backup_workers=1"),
    ("parallelism=hybrid", "parallelism.scheme=c"),
    ("parallelism=model", "parallelism.concurrent_steps=2"),
    ("parallelism=async_data", "parallelism.n_push=2"),
)
IN_ONE_PROCESS = ("parallelism=async_data", "parallelism.virtual_time=true", "parallelism.workers=2")


def strategy_in(path: Path) -> tuple[str, int]:
    parallelism: Any = load_stored(path).parallelism
    return parallelism.name, parallelism.workers


@pytest.mark.parametrize(
    ("strategy", "optimizer"),
    [
        *itertools.product(STRATEGIES, [("optimizer=momentum",), ("optimizer=adam",), ("optimizer=adagrad",)]),
        (("parallelism=sandblaster", "parallelism.workers=2"), LBFGS),
    ],
    ids=" ".join,
)
def test_every_strategy_has_the_variables_of_single(strategy: Sequence[str], optimizer: Sequence[str]) -> None:
    """The variables, including the optimizer's slots, are equal, so every strategy can resume every checkpoint."""
    alone = build(small_config(*optimizer)).program.variables
    assert build(small_config(*strategy, *optimizer)).program.variables == alone


def test_each_configuration_is_kept_under_the_number_of_its_last_start(tmp_path: Path) -> None:
    train(tmp_path, "train.steps=2")
    train(tmp_path, "train.steps=2", resume=True)
    train(tmp_path, *IN_ONE_PROCESS, "train.steps=4", resume=True)
    summary = train(tmp_path, "train.steps=6", resume=True)
    assert {path.name: strategy_in(path) for path in tmp_path.glob("config*.yaml")} == {
        "config-2.yaml": ("single", 1),
        "config-3.yaml": ("async_data", 2),
        "config.yaml": ("single", 1),
    }
    assert (summary.steps, summary.strategy) == (6, "single")


def test_a_killed_start_leaves_no_summary_of_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train(tmp_path, "train.steps=2").status == "finished"
    there = []
    execute = _Run.execute

    def look(training_run: _Run) -> Summary:
        there.append((tmp_path / "summary.json").exists())
        return execute(training_run)

    monkeypatch.setattr(_Run, "execute", look)
    train(tmp_path, "train.steps=4", resume=True)
    assert there == [False]
    assert Summary.read(tmp_path / "summary.json").steps == 4


def test_a_resume_without_checkpoint_or_without_remaining_steps_warns(tmp_path: Path, capsys: Capture) -> None:
    train(tmp_path, "train.steps=2")
    assert "warning" not in capsys.readouterr().err
    train(tmp_path, "train.steps=1", resume=True)
    nothing_left = "the run is at step 2 of 1: all steps are done; set a larger train.steps or train.epochs"
    assert f"runner: warning: {nothing_left}" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "checkpoints" / "step-2")
    train(tmp_path, "train.steps=2", resume=True)
    assert f"warning: no checkpoint in {tmp_path / 'checkpoints'}: beginning at step 0" in capsys.readouterr().err


def test_a_placement_is_dropped_if_the_strategy_changes(tmp_path: Path) -> None:
    """A stored placement is valid only for its strategy."""
    train(tmp_path, "train.steps=1")
    placement = tmp_path / "placement.json"
    placement.write_text('{"version": 1, "layers": {"fc1": "/job:worker/task:5/device:cpu:0"}}')
    train(tmp_path, "train.steps=2", resume=True)
    assert placement.exists()
    train(tmp_path, *IN_ONE_PROCESS, "train.steps=3", resume=True)
    assert not placement.exists()


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({"x_train": small_arrays()["x_train"] // 2}, "the channel mean is"),
        ({"x_test": small_arrays()["x_test"][:3], "y_test": small_arrays()["y_test"][:3]}, "3 test examples"),
        ({"class_names": np.array(["a", "b", "c"])}, "class 0 is 'a', in training it was '0'"),
    ],
)
def test_a_run_is_not_resumed_with_other_data(tmp_path: Path, changed: dict[str, Any], reported: str) -> None:
    data = ("data=arrays", f"data.path={write_arrays(tmp_path / 'mine.npz')}", "train.batch_size=4")
    before = train(tmp_path / "run", *data, "train.steps=2")
    write_arrays(tmp_path / "mine.npz", **changed)
    with pytest.raises(DataError, match=rf"data=arrays changed since the run began \(data\.json\): .*{reported}"):
        train(tmp_path / "run", *data, "train.steps=4", resume=True)
    assert Summary.read(tmp_path / "run" / "summary.json") == before
    write_arrays(tmp_path / "mine.npz")
    assert train(tmp_path / "run", *data, "train.steps=4", resume=True).steps == 4


def refuse_to_load(self: Arrays) -> Dataset:
    raise AssertionError("the images were read")


def test_user_files_are_read_again_only_for_a_stored_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ``require_same_normalisation``, which runs after the memory check, reads the images."""
    data = ("data=arrays", f"data.path={write_arrays(tmp_path / 'mine.npz')}", "train.batch_size=4")
    train(tmp_path / "run", *data, "train.steps=2")
    config = small_config(*data)
    monkeypatch.setattr(Arrays, "load", refuse_to_load)
    assert preconditions.require_same_data(config, tmp_path / "run") == []
    with pytest.raises(AssertionError, match="the images were read"):
        preconditions.require_same_normalisation(config, tmp_path / "run")
    path = tmp_path / "run" / "data.json"
    kept = json.loads(path.read_text())
    del kept["normalisation"]
    path.write_text(json.dumps(kept))
    (note,) = preconditions.require_same_data(config, tmp_path / "run")
    assert "has no record of the mean and deviation of its data (data.json): they are not compared" in note
    preconditions.require_same_normalisation(config, tmp_path / "run")


def test_stored_facts_of_a_built_in_dataset_are_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path, "train.steps=2")
    path = tmp_path / "data.json"
    path.write_text(path.read_text().replace('"train_examples": 1438', '"train_examples": 1439'))
    expected = r"data=digits changed .*there are 1438 train examples, in training there were 1439\. Restore"
    with pytest.raises(DataError, match=expected):
        train(tmp_path, "train.steps=4", resume=True)
    path.unlink()
    train(tmp_path, "train.steps=3", resume=True)
    assert "has no record of its data (data.json): the data is not compared" in caplog.text
    assert "threads_per_worker was" not in caplog.text
    train(tmp_path, "train.steps=4", "cluster.threads_per_worker=2", resume=True)
    expected = "cluster.threads_per_worker was 1 and is 2 from now on, so the weights can differ in their last bits"
    assert expected in caplog.text
    assert expected in (tmp_path / "run.log").read_text()


class Killed(BaseException):
    """An exception that simulates a kill of the process, which performs no further file operation."""


def kill_at(operation: int, patch: pytest.MonkeyPatch) -> None:
    """Let the first ``operation`` file operations succeed and all later operations raise :class:`Killed`."""
    count = itertools.count()

    def killing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if next(count) >= operation:
                raise Killed
            return function(*arguments, **named)

        return call

    for name in ("open", "mkdir", "unlink", "rename", "posix_fallocate", "fsync"):
        patch.setattr(os, name, killing(getattr(os, name)))


def prepared(folder: Path, patch: pytest.MonkeyPatch, config: Config, *, resume: bool) -> bool:
    """Prepare a start of a run without training; return whether the preparation was completed."""
    reached: list[Config] = []

    def draft_of(drafted: Config, *arguments: object) -> Summary:
        reached.append(drafted)
        raise Killed

    with patch.context() as stub:
        stub.setattr("runner.training.recording.draft_summary", draft_of)
        with pytest.raises(Killed):
            run(config, folder, overrides=[], resume=resume)
    return bool(reached)


def killed_at_each_operation(folder: Path, monkeypatch: pytest.MonkeyPatch, config: Config) -> Iterator[Path]:
    """For each file operation that prepares a start, yield a copy of ``folder`` after a kill at this operation.

    The start resumes the run in ``folder``, or begins a run if there is none.
    """
    resume = folder.exists()
    for operation in itertools.count():
        copy = folder.with_name(f"{folder.name}-{operation}")
        if resume:
            shutil.copytree(folder, copy)
        with monkeypatch.context() as patch:
            kill_at(operation, patch)
            completed = prepared(copy, patch, config, resume=resume)
        yield copy
        if completed:
            return


def test_a_run_killed_in_its_preparation_starts_or_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, resumed = small_config(), list[bool]()
    for folder in killed_at_each_operation(tmp_path / "run", monkeypatch, config):
        resumed.append(holds_run(folder))
        assert prepared(folder, monkeypatch, config, resume=resumed[-1])
        assert {"config.yaml", "data.json", "plugins.json"} <= {path.name for path in folder.iterdir()}
        assert list(folder.glob("config-*.yaml")) == []
    assert resumed == sorted(resumed)
    assert set(resumed) == {False, True}


@pytest.mark.slow
def test_a_run_that_was_killed_during_a_resume_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path / "run", "train.steps=2")
    config, strategies = small_config(*IN_ONE_PROCESS), set()
    for folder in killed_at_each_operation(tmp_path / "run", monkeypatch, config):
        strategies.add(strategy_in(folder / "config.yaml"))
        assert prepared(folder, monkeypatch, config, resume=True)
        assert strategy_in(min(folder.glob("config-*.yaml"))) == ("single", 1)
    assert strategies == {("single", 1), ("async_data", 2)}


BACKED = typed(
    "parallelism=sync_data parallelism.workers=2 parallelism.combine=parameter_server parallelism.backup_workers=1"
)
SHARES = [{"step": step, "contributors": [0, 1], "dropped": []} for step in range(3)]


def record(folder: Path, config: Config | str | None = None, lines: int = 3) -> Path:
    """Write a record of ``lines`` updates. config: configuration or outcome hash for its first line; None omits it."""
    path = folder / "contributors.jsonl"
    outcome = outcome_hash(config) if isinstance(config, Config) else config
    first = [] if outcome is None else [{"version": 1, "outcome": outcome}]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*first, *SHARES[:lines]]))
    return path


def replaying(path: Path, *overrides: str) -> Config:
    return small_config(*BACKED, *overrides, f"parallelism.replay={path}")


@pytest.mark.parametrize(
    ("settings", "lines"), [((), 3), (("train.patience=1", "train.eval_every=2"), 2)], ids=["whole", "stopped early"]
)
def test_a_record_with_the_same_outcome_is_accepted(tmp_path: Path, settings: tuple[str, ...], lines: int) -> None:
    path = record(tmp_path, small_config(*BACKED, *settings), lines)
    preconditions.require_whole_record(build(replaying(path, *settings, "train.log_every=1")))


@pytest.mark.parametrize("origin", ["another", None, small_config(*BACKED, "seed=3")], ids=["hash", "none", "seed"])
def test_the_record_of_another_run_is_refused_before_a_start(origin: Config | str | None, tmp_path: Path) -> None:
    path = record(tmp_path, origin)
    expected = r"contributors\.jsonl is not the record of a run with this configuration; use the config"
    with pytest.raises(ConfigError, match=expected):
        build(replaying(path))


def left_by(config: Config, folder: Path, *earlier: Config) -> Path:
    """Write the record of a run and the configurations of its starts, first ``earlier`` and then ``config``."""
    for start, each in enumerate(earlier, 1):
        (folder / f"config-{start}.yaml").write_text(dump(each))
    (folder / "config.yaml").write_text(dump(config))
    return record(folder, config)


SLOWER = small_config(*BACKED, "optimizer.lr=0.5")


@pytest.mark.parametrize(
    ("earlier", "lines", "expected"),
    [
        ([], 2, r"contributors\.jsonl: the record has 2 updates; expected 3\. The recorded run did not end"),
        ([SLOWER], 3, r"the recorded run changed: config-1\.yaml differs in optimizer\.lr\. No"),
    ],
)
def test_a_cut_or_mixed_record_is_refused(tmp_path: Path, earlier: list[Config], lines: int, expected: str) -> None:
    left_by(small_config(*BACKED), tmp_path, *earlier)
    path = record(tmp_path, small_config(*BACKED), lines)
    with pytest.raises(ConfigError, match=expected):
        run(replaying(path), tmp_path / "run", overrides=[])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("schedule", ["schedule=cosine", 'optimizer.rules=[{match:"*/bias",schedule:{name:cosine}}]'])
def test_more_steps_change_a_run_only_if_a_learning_rate_depends_on_them(tmp_path: Path, schedule: str) -> None:
    constant = (*BACKED, "schedule=constant")
    path = left_by(small_config(*constant), tmp_path, small_config(*constant, "train.steps=2"))
    preconditions.require_record_of_one_configuration(replaying(path, "schedule=constant"))
    dependent = (*constant, schedule)
    path = left_by(small_config(*dependent), tmp_path, small_config(*dependent, "train.steps=2"))
    with pytest.raises(ConfigError, match=r"config-1\.yaml differs in train\.steps\. No single"):
        preconditions.require_record_of_one_configuration(replaying(path, "schedule=constant", schedule))


def test_a_record_without_its_run_and_one_of_a_run_resumed_without_changes_are_accepted(tmp_path: Path) -> None:
    path = record(tmp_path, small_config(*BACKED))
    (tmp_path / "config-1.yaml").write_text("of something else")
    preconditions.require_record_of_one_configuration(replaying(path))
    alike = small_config(*BACKED, "checkpoint.keep=9")
    preconditions.require_record_of_one_configuration(replaying(left_by(small_config(*BACKED), tmp_path, alike)))
