"""Write the plan of a sweep, and the configuration of every job to its ``frozen.yaml``, before the first job runs."""

import dataclasses
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from runner.config.configuration import dump, to_plain
from runner.config.devices import require_precision
from runner.config.hydra_app import Job
from runner.config.schema import Config
from runner.errors import ConfigError, DataError, DirectoryInUseError
from runner.records.run_directory import holds_run
from runner.sweeps.outcome import FAILURE_FILE, record_failure
from runner.sweeps.plan import FROZEN_FILE, HYDRA_FILE, PLAN_FILE, Plan, PlannedJob
from runner.system.console import print_error
from runner.system.files import create_directory, replace_durably
from runner.system.redaction import redact


def sweep_directory(jobs: Sequence[Job]) -> Path:
    assert jobs[0].sweep is not None
    return jobs[0].sweep.directory


def planned(job: Job) -> PlannedJob:
    """Return a job's entry in the plan, with the number and the directory that Hydra assigned to the job."""
    assert job.sweep is not None
    directory = os.path.relpath(job.run_dir, job.sweep.directory)
    return PlannedJob(job.sweep.number, directory, list(job.overrides), dict(job.sweep.swept))


def freeze_sweep(jobs: Sequence[Job], arguments: Sequence[str], plugins: Sequence[str] = ()) -> Plan:
    """Write the plan and the configurations of a new sweep; return the plan. plugins: as in :class:`Plan`.

    If a job's configuration is invalid, the error is recorded as the job's outcome. Raises DirectoryInUseError if the
    directory already holds a sweep or a job's directory holds a run; ConfigError as ``require_own_directories`` does.
    """
    directory = sweep_directory(jobs)
    launcher = jobs[0].launcher
    assert launcher is not None
    if (directory / PLAN_FILE).exists():
        raise DirectoryInUseError(
            f"{directory} already holds a sweep: resume it with `runner sweep resume "
            f"{shlex.quote(str(directory))}`, or choose another directory with hydra.sweep.dir=DIR"
        )
    plan = Plan(os.getcwd(), list(arguments), launcher, [], list(plugins), jobs[0].sweeper)
    return freeze_batch(plan, jobs, directory)


def freeze_batch(plan: Plan, jobs: Sequence[Job], directory: Path) -> Plan:
    """Write the configurations of ``jobs``, then the plan with these jobs added; return the new plan.

    Raises DirectoryInUseError if a job's directory holds a run; ConfigError as ``require_own_directories`` does.
    """
    added = [planned(job) for job in jobs]
    plan = dataclasses.replace(plan, jobs=[*plan.jobs, *added])
    require_own_directories(plan.jobs)
    used = [job.run_dir for job in jobs if holds_run(job.run_dir)]
    if used:
        raise DirectoryInUseError(
            f"{used[0]} already holds a run: choose another directory for the sweep with hydra.sweep.dir=DIR"
        )
    for job, entry in zip(jobs, added, strict=True):
        freeze_job(job, job.run_dir, entry)
    plan.write(directory)
    if plan.private and (directory / HYDRA_FILE).exists():
        (directory / HYDRA_FILE).chmod(0o600)
    return plan


def freeze_job(job: Job, directory: Path, entry: PlannedJob) -> None:
    """Write the configuration of a job; if it is invalid, print the error and record it as the job's outcome."""
    create_directory(directory)
    try:
        config = checked_config(job)
    except (ConfigError, DataError) as error:
        print_error(error, what=entry.label)
        (directory / FROZEN_FILE).unlink(missing_ok=True)
        record_failure(error, directory, job.overrides)
        return
    (directory / FAILURE_FILE).unlink(missing_ok=True)
    plain = to_plain(config)
    private = redact(plain) != plain
    replace_durably(directory / FROZEN_FILE, dump(config).encode(), mode=0o600 if private else 0o666)


def checked_config(job: Job) -> Config:
    """Return the configuration of a job.

    Raises ConfigError if the configuration is invalid; for a job that runs on this machine, also ConfigError or
    DataError if the machine cannot run the configuration.
    """
    config = job.config()
    if config.simulate.updates is None and job.launcher is not None and job.launcher.is_local:
        require_precision(config)
        config.data.require_present()
    return config


def require_own_directories(jobs: Sequence[PlannedJob]) -> None:
    """Raise ConfigError unless every job has a separate directory inside the directory of the sweep."""
    seen: dict[str, PlannedJob] = {}
    for job in jobs:
        first = seen.setdefault(job.directory, job)
        if first is not job or job.directory.split(os.sep)[0] in ("..", "."):
            raise ConfigError(
                f"hydra.sweep.subdir: {job.label} would use the directory {job.directory!r}, "
                + (f"as {first.label} does" if first is not job else "outside the directory of the sweep")
                + "; expected a separate directory for every job, such as ${hydra.job.num}"
            )
