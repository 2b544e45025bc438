"""A run on worker processes that stops early, at the same step if it was killed before."""

import signal
from collections.abc import Callable
from pathlib import Path

from tests.integration.command import QUIET, Command, run_command, summary_of, wait_until

# No accuracy is better by more than 1: after the first evaluation six are waited for.
WAITING = (
    *QUIET,
    "hydra.run.dir=run",
    "data.val_fraction=0.2",
    "train.steps=10000",
    "train.eval_every=4",
    "train.patience=6",
    "train.min_delta=1",
    "checkpoint.every_steps=5",
)


def test_a_killed_run_has_not_forgotten_how_long_it_waited(start: Callable[..., Command], tmp_path: Path) -> None:
    (tmp_path / "uninterrupted").mkdir()
    uninterrupted = run_command(tmp_path / "uninterrupted", *WAITING)
    assert "stopped early" in uninterrupted.output, uninterrupted.errors
    command = start(tmp_path, *WAITING)
    wait_until((tmp_path / "run" / "checkpoints" / "step-15").exists, "a checkpoint to resume from")
    workers = command.workers()
    command.send(signal.SIGKILL)
    assert command.finish() == -signal.SIGKILL
    wait_until(lambda: not any(worker.is_running() for worker in workers), "the end of the workers")
    resumed = run_command(tmp_path, "resume=run")
    assert "stopped early" in resumed.output, resumed.errors
    found, expected = (summary_of(folder / "run") for folder in (tmp_path, tmp_path / "uninterrupted"))
    assert (found.status, found.steps, found.stopped) == ("finished", 28, expected.stopped)
    assert (found.best_step, found.best_value) == (expected.best_step, expected.best_value)
    assert found.weights_sha256 == expected.weights_sha256
