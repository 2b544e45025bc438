"""What became of a job, read from the files in its directory: true whichever process ran it, and however it ended."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.errors import DirectoryInUseError, Interrupted, RunnerError
from runner.records.run_directory import SUMMARY_FILE, holds_run
from runner.records.summary import Failure, Summary, cpu_model, versions
from runner.sweep.locks import job_is_running
from runner.sweep.plan import PlannedJob

FAILURE_FILE = "failure.json"
"""A summary of a job that failed where its run could not write one, or must not: before it was a run, or killed."""

_RECORDS = (FAILURE_FILE, SUMMARY_FILE)
"""The newer tells: a run that was taken up elsewhere meanwhile may have come further than its sweep knows."""

FINISHED, FAILED, INTERRUPTED = "finished", "failed", "interrupted"
RUNNING, KILLED, NOT_STARTED = "running", "killed", "not started"


@dataclass(frozen=True)
class Outcome:
    """One job and how it stands. summary: of its run, None while there is none."""

    number: int
    overrides: Sequence[str]
    swept: Mapping[str, str]
    status: str
    summary: Summary | None = None

    @property
    def error(self) -> Failure | None:
        """Why it did not finish, as far as it could say."""
        return None if self.summary is None else self.summary.error

    @property
    def best(self) -> Mapping[str, float]:
        """Metric -> best value of its run."""
        return {} if self.summary is None else self.summary.best


def read_outcome(job: PlannedJob, sweep_dir: Path) -> Outcome:
    """How a job stands now. Raises DataError when what it wrote is damaged."""
    directory = sweep_dir / job.directory
    status, summary = (RUNNING, None) if job_is_running(directory) else recorded(directory)
    return Outcome(job.number, job.overrides, job.swept, status, summary)


def recorded(directory: Path) -> tuple[str, Summary | None]:
    """Status and summary that the files in a job's directory tell, for a job that is not running."""
    there = [directory / name for name in _RECORDS if (directory / name).exists()]
    if there:
        summary = Summary.read(max(there, key=lambda path: path.stat().st_mtime_ns))
        return summary.status, summary
    return (KILLED if holds_run(directory) else NOT_STARTED), None


def last_ended(directory: Path) -> int | None:
    """When a job last came to an end, in nanoseconds as its file system counts; None before that."""
    times = [(directory / name).stat().st_mtime_ns for name in _RECORDS if (directory / name).exists()]
    return max(times, default=None)


def failure_summary(error: Exception, directory: Path, overrides: Sequence[str]) -> Summary:
    """What is known of a job that an error ended before it was a run."""
    exit_code = error.exit_code if isinstance(error, RunnerError) else None
    return Summary(
        run_id="",
        status=INTERRUPTED if isinstance(error, Interrupted) else FAILED,
        config_hash="",
        output_dir=str(directory),
        strategy="",
        workers=0,
        versions=versions(),
        platform=platform.platform(),
        cpu_model=cpu_model(),
        error=Failure(type(error).__name__, str(error), exit_code),
        overrides=list(overrides),
    )


def note_failure(error: Exception, directory: Path, overrides: Sequence[str]) -> None:
    """Leave a record of the error that ended a job, unless its run has written its own; raises OSError."""
    # A directory in use holds the record of another run.
    if isinstance(error, DirectoryInUseError) or not (directory / SUMMARY_FILE).exists():
        directory.mkdir(parents=True, exist_ok=True)
        failure_summary(error, directory, overrides).write(directory / FAILURE_FILE)


def forget(directory: Path) -> None:
    """Remove how a job ended, before it is tried again: were it killed now, nothing would tell an old story."""
    for name in _RECORDS:
        (directory / name).unlink(missing_ok=True)
