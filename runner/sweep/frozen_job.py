"""One job of a planned sweep: from its frozen configuration, or from where its run was cut off, to its outcome."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runner.config.configuration import fix_machine_values, load_stored
from runner.config.schema import Config
from runner.console import print_error
from runner.errors import Interrupted, RunnerError
from runner.records.run_directory import CONFIG_FILE, RUN_FILE
from runner.sweep.locks import job_lock
from runner.sweep.outcome import FINISHED, forget, note_failure, recorded
from runner.sweep.plan import FROZEN_FILE, PlannedJob


@dataclass(frozen=True)
class Work:
    """What there is to train. resume: a run lies in ``directory`` and goes on from its newest checkpoint."""

    config: Config
    directory: Path
    job: PlannedJob
    resume: bool


def run_frozen_job(
    job: PlannedJob, sweep_dir: Path, cores: int, train: Callable[[Work], object], *, debug: bool = False
) -> None:
    """Train a job unless it is finished, and leave its outcome in its directory.

    cores: its share of the machine, for what its configuration leaves open. Where another process still runs it,
    that one is waited for. A RunnerError is told and noted, not raised: it is no concern of the other jobs. An
    interruption is raised as Interrupted, a defect as it is, both noted.
    """
    directory = sweep_dir / job.directory
    with job_lock(directory, lambda: _tell(f"{job.label}: another process still runs it; waiting for its end")):
        if recorded(directory)[0] == FINISHED:
            return
        _tell(job.label)
        forget(directory)
        try:
            train(_work(job, directory, cores))
        except Exception as error:
            note_failure(error, directory, job.overrides)
            if isinstance(error, Interrupted):
                raise
            print_error(error, what=job.label, debug=debug)
            if not isinstance(error, RunnerError):
                raise


def _work(job: PlannedJob, directory: Path, cores: int) -> Work:
    """A run that was begun goes on with the machine values it began with: it then comes to the same bits."""
    begun = (directory / RUN_FILE).exists()
    stored = directory / CONFIG_FILE
    if begun and stored.exists():
        return Work(load_stored(stored), directory, job, resume=True)
    return Work(fix_machine_values(load_stored(directory / FROZEN_FILE), cores), directory, job, resume=begun)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
