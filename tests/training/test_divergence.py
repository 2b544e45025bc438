"""A training loss that explodes but stays finite, and a warm-up that is longer than the run."""

import math
from pathlib import Path

import pytest

from runner.cli import main
from runner.errors import DivergenceError
from runner.records.summary import Summary
from runner.training.non_finite import divergence
from tests.refusal import Capture
from tests.small_runs import SMALL, SMALL_MODEL, train
from tests.sweep.tables import rows

GUESSING = math.log(10)


@pytest.mark.parametrize(
    ("losses", "diverged"),
    [
        ([2.4], False),
        ([2.4, 0.1], False),
        ([2.4, 24.1], True),
        ([2.4, 23.9], False),
        ([1.0, 10.1], False),
        ([1.0, 23.1], True),
        ([2.4, 1e5, 24.1, 24.1, 24.1], True),
        ([2.4, 24.1, 24.1, 23.9], False),
        ([2.4, 24.1, 24.1, 24.1, 0.1, 1e9, 1e9], False),
        ([50.0, 499.0, 499.0, 499.0], False),
    ],
)
def test_three_losses_above_ten_times_the_first_and_guessing_are_divergence(losses: list[float], diverged: bool):
    found = divergence(losses, GUESSING, "lower it")
    assert (found is not None) == diverged
    if found is not None:
        limit = 10 * max(losses[0], GUESSING)
        assert f"{min(losses[1:][-3:]):.4g} or more; expected at most {limit:.4g}, 10 times" in str(found)
        assert str(found).endswith(f"the loss of an untrained network, {GUESSING:.4g}; lower it")


EXPLODING = ("optimizer=sgd", "optimizer.clip_norm=1", "schedule=constant", "train.steps=12", "train.log_every=1")
RATE = "optimizer.lr=1e5"


def test_a_diverged_run_ends_with_its_status_and_on_request_with_an_error(tmp_path: Path, capsys: Capture):
    warned = train(tmp_path / "warned", *EXPLODING, RATE)
    assert (warned.status, warned.error, warned.steps) == ("diverged", None, 12)
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if "diverged" in line]
    assert warning.startswith("runner: warning: the training loss diverged: the last 3 logged values are ")
    assert warning.removeprefix("runner: ").removeprefix("warning: ") in (tmp_path / "warned" / "run.log").read_text()
    with pytest.raises(DivergenceError, match="the training loss diverged: the last 3") as raised:
        train(tmp_path / "failed", *EXPLODING, RATE, "train.fail_on_divergence=true")
    failed = Summary.read(tmp_path / "failed" / "summary.json")
    assert failed.error is not None
    assert (failed.status, failed.error.exit_code, failed.error.message) == ("diverged", 5, str(raised.value))
    assert failed.weights_sha256 == warned.weights_sha256
    resumed = train(tmp_path / "warned", *EXPLODING, RATE, resume=True)
    assert (resumed.status, resumed.steps) == ("diverged", 12), "the losses before the resume count"


@pytest.mark.parametrize(("fail", "code"), [("false", 0), ("true", 1)])
def test_a_diverged_job_is_last_not_repeated_and_fails_on_request(folder: Path, capsys: Capture, fail: str, code: int):
    sweep = ["-m", *SMALL, *SMALL_MODEL, *EXPLODING, "optimizer.lr=1e5,0.01", f"train.fail_on_divergence={fail}"]
    assert main([*sweep, "hydra.sweep.dir=sweep"]) == code
    best, last = rows(folder)
    assert (float(best["optimizer_lr"]), best["status"]) == (0.01, "finished")
    assert last["status"] == "diverged"
    assert last.get("error", "").partition(": the")[0] == ("DivergenceError" if code else "")
    err = capsys.readouterr().err
    assert ("runner: 1 of 2 jobs failed" in err) == bool(code)
    assert main(["sweep", "resume", "sweep"]) == code
    assert "job 0" not in capsys.readouterr().err


@pytest.mark.parametrize(("steps", "warned"), [(3, True), (4, False)])
def test_a_warm_up_longer_than_the_run_is_warned_of(tmp_path: Path, capsys: Capture, steps: int, warned: bool):
    train(tmp_path, "schedule.warmup_steps=3", f"train.steps={steps}")
    warning = (
        "schedule.warmup_steps=3 with a run of 3 steps: the run ends during the warm-up, at 0.75 of the learning rate; "
        "use fewer warm-up steps, or a longer run\n"
    )
    assert (f"runner: warning: {warning}" in capsys.readouterr().err) == warned
    assert (warning in (tmp_path / "run.log").read_text()) == warned
