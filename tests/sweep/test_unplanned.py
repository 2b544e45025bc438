"""A sweep whose sweeper needs results: its jobs run as they are composed, and it cannot be resumed."""

import dataclasses
from pathlib import Path

from runner.config.hydra_app import Job, compose
from runner.config.launcher import SweepPlace
from runner.config.schema import Config
from runner.errors import NumericError
from runner.records.summary import Summary
from runner.sweep.sweep import Sweep
from tests.fake_training import Call, summary_of


def train(config: Config, job: Job) -> Summary:
    """A run that writes its summary, or fails where its seed is 2."""
    if config.seed == 2:
        raise NumericError("the loss is nan")
    summary = summary_of(Call(config, job.run_dir, job.overrides, job.sweep, resume=False))
    job.run_dir.mkdir()
    summary.write(job.run_dir / "summary.json")
    return summary


def test_jobs_run_as_they_come_and_are_reported_together(folder: Path) -> None:
    sweep = Sweep(train)
    for number in range(3):
        job = compose(["tracking=none", f"seed={number}"])
        place = SweepPlace(folder, number, {"seed": str(number)})
        sweep.run(dataclasses.replace(job, run_dir=folder / str(number), sweep=place))
    assert sweep.finish() == 1
    lines = (folder / "jobs.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["seed", "1", "0", "2"]
    assert lines[-1].endswith("failed: NumericError: the loss is nan")
    assert not (folder / "plan.json").exists()


def test_without_a_job_there_is_nothing_to_report(folder: Path) -> None:
    assert Sweep(train).finish() == 0
    assert not list(folder.iterdir())
