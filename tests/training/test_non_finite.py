"""The origin of a loss that is not finite, found by repeating the run."""

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runner.config.outcome import outcome_hash
from runner.engine.run.session import Session
from runner.errors import NonFiniteLossError, NumericError
from runner.records.endings import read_endings
from runner.records.run_directory import RunDirectory
from runner.training import non_finite as origin
from runner.training.build import build
from runner.training.experiment import Experiment
from runner.training.non_finite import repeated_experiment
from tests.small_runs import small_config, train

ASYNC = ("parallelism=async_data", "parallelism.workers=2", "parallelism.servers=2")
VIRTUAL = "parallelism.virtual_time=true"
RUINED = (*ASYNC, VIRTUAL, "optimizer.lr=1e25", "schedule=constant", "train.steps=20", "train.eval_every=1")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    with RunDirectory.open(tmp_path / "run", resume=False) as directory:
        yield directory


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The strategies with which steps are repeated to find an origin."""
    opened: list[Any] = []
    open_session = origin.open_session

    @contextmanager
    def noted(experiment: Experiment, directory: RunDirectory, check_finite: bool) -> Iterator[Session]:
        opened.append(experiment.config.parallelism)
        with open_session(experiment, directory, check_finite) as session:
            yield session

    monkeypatch.setattr(origin, "open_session", noted)
    return opened


def test_overlapping_clients_are_repeated_in_the_order_in_which_they_ended(tmp_path: Path, repeated: list[Any]) -> None:
    with pytest.raises(NumericError, match=r"the loss of step \d+ is (nan|inf).*\. Its origin: .*node '.*first node"):
        train(tmp_path, *RUINED)
    (strategy,) = repeated
    assert strategy.replay == str(tmp_path / "endings-1.jsonl")
    assert not strategy.virtual_time


def test_clients_that_overlap_a_failure_are_in_the_record(tmp_path: Path) -> None:
    """Parts that have ended can only be repeated in their turns, after all earlier parts."""
    settings = (*RUINED, "parallelism.workers=3", "train.eval_every=20")
    with pytest.raises(NumericError, match="Its origin: "):
        train(tmp_path, *settings)
    turns: dict[str, list[int]] = {}
    for ending in read_endings(tmp_path / "endings-1.jsonl", outcome_hash(small_config(*settings))):
        for device, turn in ending.turns.items():
            turns.setdefault(device, []).append(turn)
    assert len(turns) == 5
    assert all(sorted(own) == list(range(len(own))) for own in turns.values())


def test_after_a_checkpoint_their_order_is_not_known_and_the_origin_is_a_possible_one(
    tmp_path: Path, repeated: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, *RUINED, "optimizer.lr=0.1", "train.steps=2")
    monkeypatch.setattr(origin, "repeated_experiment", lambda *arguments: None)
    expected = r"\. A possible origin, found in another order of clients: .*node '"
    with caplog.at_level(logging.WARNING), pytest.raises(NumericError, match=expected):
        train(tmp_path, *RUINED, resume=True)
    (strategy,) = repeated
    assert strategy.replay is None
    expected = "the order in which clients overlapped cannot be repeated from step 2 on: the steps run in "
    assert any(message.startswith(expected) for message in caplog.messages)


def test_the_order_of_virtual_time_is_known_after_a_checkpoint_and_that_of_a_race_is_not(
    tmp_path: Path, directory: RunDirectory, repeated: list[Any]
) -> None:
    directory.endings_jsonl.touch()
    assert repeated_experiment(build(small_config(*ASYNC)), directory, 5) is None
    train(tmp_path / "ruined", *RUINED, "optimizer.lr=0.1", "train.steps=2")
    with pytest.raises(NumericError, match=r"\. Its origin: .*node '"):
        train(tmp_path / "ruined", *RUINED, resume=True)
    (strategy,) = repeated
    assert strategy.virtual_time


def test_a_run_whose_results_depend_on_no_overlap_is_repeated_unchanged(directory: RunDirectory) -> None:
    settings = ("parallelism=sandblaster", "optimizer=lbfgs", "schedule=constant", "train.batch_size=32")
    overlapping = build(small_config(*settings))
    assert any(client.deferred for client in overlapping.program.training)
    for experiment, step in itertools.product((build(small_config()), overlapping), (0, 5)):
        assert repeated_experiment(experiment, directory, step) is experiment


def test_a_race_is_repeated_from_its_record_without_an_emulated_network(directory: RunDirectory) -> None:
    experiment = build(small_config(*ASYNC, "cluster=slow_network"))
    assert repeated_experiment(experiment, directory, 0) is None, "there is no record of endings"
    directory.endings_jsonl.touch()
    again = repeated_experiment(experiment, directory, 0)
    assert again is not None
    assert again.emulation is None


def test_a_record_that_is_damaged_leaves_the_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def damage(error: NonFiniteLossError, experiment: Experiment, directory: RunDirectory) -> None:
        directory.endings_jsonl.write_text("{}")
        origin.name_the_node(error, experiment, directory)

    monkeypatch.setattr("runner.training.run.name_the_node", damage)
    with pytest.raises(NumericError, match=r"^the loss of step \d+ is .*: lower optimizer.lr or optimizer.clip_norm$"):
        train(tmp_path, *RUINED)
    assert any(message.startswith("the origin was not found: ") for message in caplog.messages)
