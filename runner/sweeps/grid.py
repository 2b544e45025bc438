"""Resume a sweep with another grid of jobs: find the new, removed and altered jobs, and write the new plan."""

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from runner.config.command_line import split_arguments
from runner.config.configuration import load_stored
from runner.config.hydra_app import Job
from runner.config.launcher import STORED_LAUNCHERS
from runner.errors import ConfigError, DataError, SecurityError
from runner.sweeps.freezing import checked_config, freeze_job, planned, require_own_directories
from runner.sweeps.plan import FROZEN_FILE, Plan, PlannedJob
from runner.system.redaction import redact_overrides

_J = TypeVar("_J", Job, PlannedJob)
_Identity = tuple[tuple[str, ...], int]
_LAUNCHER, _LAUNCHER_KEYS = "hydra/launcher", "hydra.launcher."
_MULTIRUN = ("-m", "--multirun")
_CONFIG_KEY = re.compile(r"(\+\+?|~)?(?!hydra\b)[A-Za-z_]\w*([./]\w+)*")
_RESOLVER = re.compile(r"\$\{.*:", re.DOTALL)
_SWEEP_KEYS = re.compile(
    rf"hydra/launcher=({'|'.join(STORED_LAUNCHERS)})"
    r"|hydra\.(launcher\.\w+|sweeper\.max_batch_size)=(-?\d+|null)"
    r"|hydra\.job\.chdir=(true|false)"
    r"|hydra\.sweep\.(dir=.*|subdir=[^:]*)",
    re.IGNORECASE | re.DOTALL,
)
"""Overrides of Hydra's own settings that cannot run code. ``hydra.sweep.dir`` is ignored when a sweep is resumed."""


@dataclass(frozen=True)
class Change:
    """The differences between the plan of a sweep and the jobs of its new grid.

    jobs: the jobs of the new grid, each as an entry of the plan and as composed by Hydra. new: jobs of the new grid
    only. gone: jobs of the old grid only. altered: jobs of both grids whose configuration differs from frozen.yaml.
    """

    jobs: list[tuple[PlannedJob, Job]]
    new: list[PlannedJob]
    gone: list[PlannedJob]
    altered: list[PlannedJob]

    def require_none(self) -> None:
        """Raise ConfigError, which lists every difference, if the jobs or their configurations changed."""
        lines = [f"  new: {job.label}" for job in self.new]
        lines += [f"  removed: {job.label}" for job in self.gone]
        lines += [f"  {job.label}: the configuration differs from frozen.yaml" for job in self.altered]
        if lines:
            raise ConfigError(
                "the grid of the sweep changed:\n"
                + "\n".join(lines)
                + "\nleave out the arguments after the directory to resume the stored sweep. With --accept-changes "
                "new jobs are added, removed jobs are left out of the table, and stored configurations are kept"
            )


def merged_arguments(stored: Sequence[str], given: Sequence[str]) -> list[str]:
    """Return the stored command line of a sweep, changed by the ``given`` arguments.

    A given override replaces the stored override of the same key, or is added if there is none. A given launcher also
    removes the settings of the stored launcher. Given options, such as ``--config-dir``, replace all stored options
    except ``--multirun``. Raises SecurityError if a remaining stored argument could run code or read files or secrets.
    """
    overrides, options = split_arguments(stored)
    given, given_options = split_arguments(given)
    merged: list[str] = []
    for override in overrides:
        same = [each for each in given if _key(each) == _key(override)]
        # If a key is stored twice, the second override must not win over the given one.
        merged += [each for each in same if each not in merged] if same else [override]
    merged += [each for each in given if each not in merged]
    if _LAUNCHER in {_key(override) for override in given}:
        merged = [item for item in merged if not item.startswith(_LAUNCHER_KEYS) or item in given]
    foreign = [item for item in merged if item not in given and not _is_plain(item)]
    if not given_options:
        foreign += [option for option in options if option not in _MULTIRUN]
    if foreign:
        shown = ", ".join(map(repr, redact_overrides(foreign)))
        raise SecurityError(
            f"the stored command line of the sweep has {shown}: such arguments can name code and are not taken from a "
            "stored sweep; if you trust them, repeat them after the directory"
        )
    return [*(option for option in options if option in _MULTIRUN), *merged, *given_options]


def _is_plain(override: str) -> bool:
    """Return whether a stored override only sets values, and is therefore safe even if another user stored it."""
    key, _, value = override.partition("=")
    if _SWEEP_KEYS.fullmatch(override):
        return True
    # A key without a dot can be a group, whose value names a YAML file: with "..", the file could be in any folder. A
    # resolver such as ${oc.env:TOKEN} reads secrets that the author of the stored sweep must not learn.
    return bool(_CONFIG_KEY.fullmatch(key)) and not (".." in value and "." not in key) and not _RESOLVER.search(value)


def change_of(plan: Plan, jobs: Sequence[Job], sweep_dir: Path) -> Change:
    """Compare a plan with the jobs of a new grid; a planned job and a new job with equal overrides are the same job."""
    known = dict(_identified(plan.jobs))
    number = max((job.number for job in plan.jobs), default=-1) + 1
    pairs, new, altered = [], [], []
    for identity, job in _identified(jobs):
        fresh = planned(job)
        old = known.pop(identity, None)
        if old is None:
            # The job gets a new number; if its directory is named after the number, the directory changes too.
            place = str(number) if fresh.directory == str(fresh.number) else fresh.directory
            fresh = dataclasses.replace(fresh, number=number, directory=place)
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
    """Write the plan of the new grid and return it; jobs of the old plan keep their configurations and numbers.

    plugins: as in :class:`Plan`. Raises ConfigError if a job would have the directory of another job.
    """
    kept, known = {job.number for job, _ in change.jobs}, {job.number for job in plan.jobs}
    others = [dataclasses.replace(job, in_grid=False) for job in plan.jobs if job.number not in kept]
    jobs = sorted([*others, *(job for job, _ in change.jobs)], key=lambda job: job.number)
    require_own_directories(jobs)
    for entry, job in change.jobs:
        directory = sweep_dir / entry.directory
        # If an earlier call was killed before it wrote the plan, a new job's directory may hold an old frozen.yaml.
        if entry.number not in known or not (directory / FROZEN_FILE).exists():
            freeze_job(job, directory, entry)
    launcher = change.jobs[0][1].launcher if change.jobs else None
    result = dataclasses.replace(
        plan, arguments=list(arguments), launcher=launcher or plan.launcher, jobs=jobs, plugins=list(plugins)
    )
    result.write(sweep_dir)
    return result


def _identified(jobs: Sequence[_J]) -> list[tuple[_Identity, _J]]:
    """Return each job with its identity: its overrides, and the number of earlier jobs that have the same overrides."""
    seen: Counter[tuple[str, ...]] = Counter()
    found = []
    for job in jobs:
        key = tuple(sorted(job.overrides))
        found.append(((key, seen[key]), job))
        seen[key] += 1
    return found


def _same_configuration(job: Job, directory: Path) -> bool:
    try:
        config = checked_config(job)
    except (ConfigError, DataError):
        return not (directory / FROZEN_FILE).exists()
    return (directory / FROZEN_FILE).exists() and config == load_stored(directory / FROZEN_FILE)


def _key(argument: str) -> str:
    return argument.partition("=")[0].lstrip("+~")
