"""Sweeps of hydra-optuna-sweeper, which chooses jobs by the results of earlier jobs."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.cli import main
from runner.errors import Interrupted, NumericError, RunnerError
from runner.records.summary import Failure
from runner.sweeps.outcome import Outcome
from runner.sweeps.plan import Plan
from tests.fake_training import Call, FakeTraining
from tests.records.test_summary import SUMMARY
from tests.refusal import Capture, refused
from tests.small_runs import typed
from tests.sweep.tables import rows, statuses

# The plugin allows only Optuna 2, whose import warns with current versions of Python and SQLAlchemy.
pytestmark = pytest.mark.filterwarnings("ignore")

OPTUNA = ["-m", "hydra/sweeper=optuna", "hydra.sweeper.sampler.seed=1", "hydra.sweep.dir=sweep", "tracking=none"]
TRIALS = [*OPTUNA, "hydra.sweeper.n_trials=3", "seed=range(1,9)"]


@pytest.fixture(autouse=True)
def without_logging() -> None:
    """Disable the log of Optuna, which would write to the closed standard error of an earlier test."""
    import optuna

    optuna.logging.disable_default_handler()


def test_the_objective_is_the_metric_and_its_direction(fake_training: FakeTraining, folder: Path, capsys: Capture):
    assert main(TRIALS) == 0
    seeds = [call.config.seed for call in fake_training.calls]
    assert len(seeds) == 3
    found = yaml.safe_load((folder / "sweep" / "optimization_results.yaml").read_text())
    assert found["best_value"] == max(seeds) / 10
    assert [int(row["job"]) for row in rows(folder)] == sorted(range(3), key=lambda job: -seeds[job])
    assert [job.swept for job in Plan.read(folder / "sweep").jobs] == [{"seed": str(seed)} for seed in seeds]
    lines = capsys.readouterr().err.splitlines()
    counts = [line.rpartition("; ")[2].partition(",")[0] for line in lines if "ended" in line]
    assert counts == ["1 of 3 jobs ended", "2 of 3 jobs ended", "3 of 3 jobs ended"]
    assert main(["sweep", "best", "sweep"]) == 0
    assert capsys.readouterr().out == f"{folder / 'sweep' / str(seeds.index(max(seeds)))}\n"
    picture = folder / "sweep" / "sweep.png"
    picture.unlink(missing_ok=True)
    assert main(["sweep", "plot", "sweep"]) == 0
    assert capsys.readouterr().out == f"{picture}\n"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("metric", "best", "settings"),
    [("train/loss", min, []), ("simulated/examples_per_s", max, ["simulate.updates=1"])],
)
def test_the_metric_of_the_jobs_decides_which_values_are_better(
    metric: str, best: Callable[[Iterable[int]], int], settings: list[str], fake_training: FakeTraining, folder: Path
):
    fake_training.metric = metric
    assert main([*TRIALS, "train.monitor=train/loss", *settings]) == 0
    found = yaml.safe_load((folder / "sweep" / "optimization_results.yaml").read_text())
    assert found["best_value"] == best(call.config.seed for call in fake_training.calls) / 10


def test_a_direction_that_contradicts_the_metric_is_refused(fake_training: FakeTraining, folder: Path, capsys: Capture):
    message = refused([*TRIALS, "hydra.sweeper.direction=minimize"], capsys)
    assert "hydra.sweeper.direction=minimize: jobs return test/accuracy (train.monitor), whose high values" in message
    assert fake_training.calls == []


@pytest.mark.parametrize(
    ("settings", "found"),
    [([], ["failed", "finished"]), (["hydra.sweeper.max_failure_rate=1"], ["failed", "finished", "finished"])],
    ids=["the first failed job ends the sweep", "a rate of failed jobs is allowed"],
)
def test_a_failed_job_is_a_failed_trial(
    fake_training: FakeTraining, folder: Path, capsys: Capture, settings: list[str], found: list[str]
):
    def fail_second(call: Call) -> None:
        if len(fake_training.calls) == 2:
            raise NumericError("the loss is nan")

    fake_training.act = fail_second
    assert main([*TRIALS, "hydra.sweeper.n_jobs=1", *settings]) == 1
    assert sorted(statuses(folder)) == found
    assert "error: the loss is nan" in capsys.readouterr().err


FAILURE = Failure("DivergenceError", "the loss exploded", 5)


@pytest.mark.parametrize(
    ("status", "changes", "value"),
    [
        ("finished", {"headline": {"test/accuracy": 0.5}}, 0.5),
        ("finished", {"headline": {}}, "job 3 (lr=1): the job has no value of its metric"),
        ("diverged", {"headline": {"test/accuracy": 0.1}}, 0.1),
        ("diverged", {"error": FAILURE}, "job 3 (lr=1): the loss exploded"),
        ("killed", None, "job 3 (lr=1): killed"),
    ],
)
def test_a_job_that_ended_without_an_error_has_a_value(
    status: str, changes: dict[str, Any] | None, value: float | str
) -> None:
    ended = replace(SUMMARY, monitor="test/accuracy", direction="max")
    summary = None if changes is None else replace(ended, status=status, **changes)
    found = Outcome(3, ["lr=1"], {"lr": "1"}, status, summary).value_or_error()
    assert (str(found) if isinstance(found, RunnerError) else found) == value


def test_an_interrupted_sweep_can_only_be_finished(fake_training: FakeTraining, folder: Path, capsys: Capture):
    def act(call: Call) -> None:
        if len(fake_training.calls) == 2:
            raise Interrupted(2)

    fake_training.act = act
    assert main([*TRIALS, "hydra.sweeper.n_jobs=1"]) == 130
    assert sorted(statuses(folder)) == ["finished", "interrupted"]
    assert "runner: sweep interrupted" in capsys.readouterr().err
    assert main(["sweep", "resume", "sweep"]) == 0
    assert set(statuses(folder)) == {"finished"}
    capsys.readouterr()
    for argument in ("seed=9", "--accept-changes"):
        message = refused(["sweep", "resume", "sweep", argument], capsys)
        assert f"error: {argument}: sweeper optuna chose the jobs of this sweep by their results, so its" in message


@pytest.mark.slow
def test_trials_run_in_parallel_processes(folder: Path, capsys: Capture):
    parallel = typed("hydra/launcher=joblib hydra.launcher.n_jobs=2 hydra.sweeper.n_jobs=2 hydra.sweeper.n_trials=4")
    axis = "optimizer.lr=tag(log,interval(0.001,0.3))"
    assert main([*OPTUNA, *parallel, axis, "train.steps=2", "parallelism=single"]) == 0
    assert statuses(folder) == ["finished"] * 4
    values = [float(row["test_accuracy"]) for row in rows(folder)]
    assert values == sorted(values, reverse=True)
    found = yaml.safe_load((folder / "sweep" / "optimization_results.yaml").read_text())
    assert found["best_value"] == values[0]
    err = capsys.readouterr().err
    assert [err.count(f"{ended} of 4 jobs ended") for ended in range(5)] == [0, 1, 1, 1, 1]
