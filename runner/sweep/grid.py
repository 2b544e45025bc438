"""Taking up a sweep with another grid: which jobs stay, which are new, which are gone, and who must agree to that."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from runner.config.configuration import load_stored
from runner.config.hydra_app import Job
from runner.errors import ConfigError
from runner.sweep.freezing import freeze_job, planned, require_own_directories
from runner.sweep.plan import FROZEN_FILE, Plan, PlannedJob

_J = TypeVar("_J", Job, PlannedJob)
_Identity = tuple[tuple[str, ...], int]
_LAUNCHER, _LAUNCHER_KEYS = "hydra/launcher", "hydra.launcher."


@dataclass(frozen=True)
class Change:
    """A planned sweep beside the jobs that its command line comes to now.

    jobs: of the new grid, each with its composed self. new, gone: jobs of one grid only. altered: of both, with
    another configuration than when they were frozen.
    """

    jobs: list[tuple[PlannedJob, Job]]
    new: list[PlannedJob]
    gone: list[PlannedJob]
    altered: list[PlannedJob]

    def require_none(self) -> None:
        """Raise ConfigError, with every difference, unless the grid and its configurations are what they were."""
        lines = [f"  new: {job.label}" for job in self.new]
        lines += [f"  gone: {job.label}" for job in self.gone]
        lines += [f"  {job.label}: would have another configuration than the one frozen" for job in self.altered]
        if lines:
            raise ConfigError(
                "the sweep is no longer the one that was started:\n"
                + "\n".join(lines)
                + "\nleave out the arguments after the directory to go on with what was frozen. With --accept-changes "
                "new jobs are added, jobs that are gone are left alone and out of the table, frozen ones stay frozen"
            )


def merged_arguments(stored: Sequence[str], given: Sequence[str]) -> list[str]:
    """The command line of a sweep with ``given`` overrides in place of those of the same keys, or behind them.

    Another launcher comes without the settings of the former.
    """
    fresh = {_key(argument): argument for argument in given}
    merged = [fresh.pop(_key(argument), argument) for argument in stored]
    if _LAUNCHER in {_key(argument) for argument in given}:
        merged = [item for item in merged if not item.startswith(_LAUNCHER_KEYS) or item in given]
    return [*merged, *fresh.values()]


def change_of(plan: Plan, jobs: Sequence[Job], sweep_dir: Path) -> Change:
    """Compare a plan with freshly composed jobs; a job is recognised by its overrides.

    Raises ConfigError where the directory of a new job is taken.
    """
    known = dict(_identified(plan.jobs))
    number = max((job.number for job in plan.jobs), default=-1) + 1
    pairs, new, altered = [], [], []
    for identity, job in _identified(jobs):
        fresh = planned(job)
        old = known.pop(identity, None)
        if old is None:
            fresh = _numbered(fresh, number)
            number += 1
        else:
            fresh = dataclasses.replace(fresh, number=old.number, directory=old.directory)
        if old is None or not old.in_grid:
            new.append(fresh)
        elif not _same_configuration(job, sweep_dir / old.directory):
            altered.append(fresh)
        pairs.append((fresh, job))
    return Change(pairs, new, [job for job in known.values() if job.in_grid], altered)


def changed_plan(
    plan: Plan, change: Change, arguments: Sequence[str], sweep_dir: Path, plugins: Sequence[str] = ()
) -> Plan:
    """Put the new grid on the disk and return its plan. Frozen configurations and numbers stay as they are.

    plugins: those that the sweep needs now, pinned.
    """
    kept, known = {job.number for job, _ in change.jobs}, {job.number for job in plan.jobs}
    others = [dataclasses.replace(job, in_grid=False) for job in plan.jobs if job.number not in kept]
    jobs = sorted([*others, *(job for job, _ in change.jobs)], key=lambda job: job.number)
    require_own_directories(jobs)
    for of_plan, job in change.jobs:
        directory = sweep_dir / of_plan.directory
        # What lies there under a number of no plan is left from a change that was killed before its plan was written.
        if of_plan.number not in known or not (directory / FROZEN_FILE).exists():
            freeze_job(job, directory, of_plan)
    launcher = change.jobs[0][1].launcher if change.jobs else None
    result = Plan(plan.folder, list(arguments), launcher or plan.launcher, jobs, list(plugins))
    result.write(sweep_dir)
    return result


def _identified(jobs: Sequence[_J]) -> list[tuple[_Identity, _J]]:
    """Each with its overrides and how often they came before: a grid may ask for the same twice."""
    seen: Counter[tuple[str, ...]] = Counter()
    found = []
    for job in jobs:
        key = tuple(sorted(job.overrides))
        found.append(((key, seen[key]), job))
        seen[key] += 1
    return found


def _numbered(job: PlannedJob, number: int) -> PlannedJob:
    """A new job under a number nobody has; a directory named after Hydra's number follows."""
    directory = str(number) if job.directory == str(job.number) else job.directory
    return dataclasses.replace(job, number=number, directory=directory)


def _same_configuration(job: Job, directory: Path) -> bool:
    try:
        config = job.config()
    except ConfigError:
        return not (directory / FROZEN_FILE).exists()
    return (directory / FROZEN_FILE).exists() and config == load_stored(directory / FROZEN_FILE)


def _key(argument: str) -> str:
    return argument.partition("=")[0].lstrip("+~")
