"""The tracking record of a sweep, ended after the sweep has: its jobs came to the store later, or that was away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from runner.records.late_tracking import store_setting
from runner.sweep.locks import sweep_lock
from runner.sweep.outcome import FAILED, FINISHED, INTERRUPTED, RUNNING, Outcome, last_ended, read_outcome
from runner.sweep.plan import PLAN_FILE, Plan
from runner.sweep.report import planned_monitor, write_tables
from runner.tracking.mlflow_sweep import SWEEP_FILE, end_parent
from runner.tracking.origin import ORIGIN_FILE, Origin
from runner.tracking.records import End


def recorded_sweeps(directories: Iterable[Path]) -> list[Path]:
    """Of each directory the planned sweep that it holds or is inside of, if that has a tracking record; each once."""
    found = (next(filter(_is_recorded, (directory, *directory.parents)), None) for directory in directories)
    return [sweep for sweep in dict.fromkeys(found) if sweep is not None]


def end_late(directory: Path) -> None:
    """End the tracking record of a recorded sweep by how its jobs stand, with its tables, when the last job ended.

    Left alone while a job of it runs. Raises DirectoryInUseError while the sweep does; StoreUnavailableError;
    ConfigError, DataError, OSError or ValueError where its files do not tell how it went or is recorded.
    """
    with sweep_lock(directory):
        plan = Plan.read(directory)
        jobs = [directory / job.directory for job in plan.grid]
        outcomes = [read_outcome(job, directory) for job in plan.grid]
        recorded = next((job for job in jobs if (job / ORIGIN_FILE).exists()), None)
        ended_ns = list(_ended_ns(jobs))
        if recorded is None or not ended_ns or any(outcome.status == RUNNING for outcome in outcomes):
            return
        files, description = write_tables(outcomes, planned_monitor(plan, directory), directory)
        end = End(_status(outcomes), max(ended_ns) // 1_000_000)
        origin = Origin.read(recorded)
        uri = origin.address(store_setting(recorded), Path.cwd())
        end_parent(uri, origin.experiment, directory, end, files, description)


def _is_recorded(directory: Path) -> bool:
    return all((directory / name).is_file() for name in (PLAN_FILE, SWEEP_FILE))


def _ended_ns(jobs: Iterable[Path]) -> Iterator[int]:
    for job in jobs:
        ended = last_ended(job)
        if ended is not None:
            yield ended


def _status(outcomes: Sequence[Outcome]) -> str:
    found = {outcome.status for outcome in outcomes}
    if found <= {FINISHED}:
        return FINISHED
    return FAILED if found <= {FINISHED, FAILED} else INTERRUPTED
