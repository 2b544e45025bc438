"""Checkpoints that a second thread writes while training goes on."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from runner.checkpoint import load, weights_sha256
from runner.checkpoint import save as save_checkpoint
from runner.checkpoint.background import COST, BackgroundSaver
from runner.errors import ResourceError
from runner.records.summary import Summary
from runner.training.run import run
from tests.small_runs import small_config


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_time_between_saves_grows_with_their_duration() -> None:
    clock = Clock()
    saver = BackgroundSaver(60.0, clock)
    due = []
    for duration, later in ((0.0, 60.0), (3.0, 60.0), (0.0, COST * 3.0)):
        due.append(saver.is_due)
        clock.now += later
        due.append(saver.is_due)

        def write(duration: float = duration) -> Path:
            clock.now += duration
            return Path()

        saver.start(write, clock())
        saver.finish()
    saver.close()
    assert due == [False, True] * 3
    clock.now += 59.0
    assert not saver.is_due
    assert not BackgroundSaver(None, clock).is_due


def test_one_save_runs_at_a_time_and_its_error_is_raised() -> None:
    go_on, ended, saver = threading.Event(), list[str](), BackgroundSaver(0.0)

    def fail() -> Path:
        go_on.wait(10)
        ended.append("first")
        raise ResourceError("no space")

    saver.start(fail, 0.0)
    saver.check()
    assert not saver.is_due
    go_on.set()
    with pytest.raises(ResourceError, match="no space"):
        saver.start(Path, 0.0)
    assert ended == ["first"]
    assert saver.finish() is None
    saver.start(lambda: Path("a"), 0.0)
    assert saver.finish() == Path("a")
    saver.close()


def train(folder: Path, *overrides: str) -> Summary:
    return run(small_config("train.eval_every=100", *overrides), folder, overrides=overrides)


@pytest.mark.parametrize("strategy", ["parallelism=single", "parallelism=sync_data"])
def test_a_slow_save_keeps_its_variables(strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train(tmp_path / "two", strategy, "train.steps=2", "schedule=constant")
    written, saved = threading.Event(), []

    def slow(*arguments: object, step: int, variables: dict[str, np.ndarray], **named: object) -> Path:
        if step == 2:
            written.wait(0.3)
        saved.append((step, weights_sha256(variables)))
        return tmp_path

    monkeypatch.setattr("runner.training.saving.save_checkpoint", slow)
    lengths = ("train.steps=6", "checkpoint.every_steps=2", "schedule=constant")
    train(tmp_path / "six", strategy, *lengths)
    assert [step for step, _ in saved] == [2, 4, 6]
    assert saved[0][1] == expected.weights_sha256


def test_checkpoints_by_time_change_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train(tmp_path / "plain", "train.steps=6")
    monkeypatch.setattr("runner.checkpoint.background.COST", 0)
    summary = train(tmp_path / "often", "train.steps=6", "checkpoint.every_s=0", "checkpoint.keep=9")
    found = sorted((tmp_path / "often" / "checkpoints").iterdir())
    assert len(found) > 1
    assert len(list((tmp_path / "plain" / "checkpoints").iterdir())) == 1
    assert summary.weights_sha256 == expected.weights_sha256 == weights_sha256(load(found[-1]).variables)


def test_a_failed_save_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: object, step: int, **named: object) -> Path:
        if step == 2:
            raise ResourceError("no space for a checkpoint")
        return save_checkpoint(*arguments, step=step, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("runner.training.saving.save_checkpoint", failing)
    monkeypatch.setattr("runner.training.experiment.train_step", _slowed)
    with pytest.raises(ResourceError, match="no space for a checkpoint"):
        train(tmp_path, "train.steps=1000", "checkpoint.every_steps=2")
    summary = Summary.read(tmp_path / "summary.json")
    assert (summary.status, summary.steps < 1000) == ("failed", True)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def _slowed(driver: object, experiment: object, step: int) -> dict[str, np.ndarray]:
    time.sleep(0.005)
    return {"loss": np.float64(1.0), "accuracy": np.float64(0.5)}  # type: ignore[dict-item]
