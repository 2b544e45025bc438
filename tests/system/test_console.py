"""Where the log of a run goes, and what of it a person sees at once."""

import logging
import os
import re
import shutil
from pathlib import Path

import pytest

from runner.system.console import NOT_ON_TERMINAL, logging_to
from runner.training.run import run
from tests.small_runs import small_config

log = logging.getLogger("runner.tests")


def test_the_file_has_all_and_the_terminal_the_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.log"
    with logging_to(path):
        log.info("decided")
        log.warning("slower: token=abcdef")
        log.warning("known by now", extra=NOT_ON_TERMINAL)
        log.error("lost")
    assert not logging.getLogger("runner").handlers
    shown = ["runner: warning: slower: token=[redacted]", "runner: error: lost"]
    assert capsys.readouterr().err.splitlines() == shown
    lines = [re.sub(r".* (\w+) [\w.]+: ", r"\1 ", line) for line in path.read_text().splitlines()]
    kept = ["INFO decided", "WARNING slower: token=[redacted]", "WARNING known by now", "ERROR lost"]
    assert lines == kept


def test_a_terminal_that_is_gone_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning may come from any thread, such as that of the tracking record."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", buffering=1) as gone, logging_to(tmp_path / "run.log"):
        monkeypatch.setattr("sys.stderr", gone)
        log.warning("the store does not answer")
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), gone.fileno())  # for what is left in its buffer
    assert "the store does not answer" in (tmp_path / "run.log").read_text()


def test_a_run_with_nothing_left_to_train_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    run(small_config("train.steps=2"), folder, overrides=[])
    assert "warning" not in capsys.readouterr().err
    run(small_config("train.steps=1"), folder, overrides=[], resume=True)
    said = (
        "runner: warning: the run is at step 2 of 1: nothing is left to train; set a larger train.steps or train.epochs"
    )
    assert said in capsys.readouterr().err
    shutil.rmtree(folder / "checkpoints" / "step-2")
    run(small_config("train.steps=2"), folder, overrides=[], resume=True)
    assert f"warning: no checkpoint in {folder / 'checkpoints'}: beginning at step 0" in capsys.readouterr().err
