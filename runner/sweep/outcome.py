"""The outcome of a job, read from the files in the job's directory; any process may have run the job."""

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
"""The file with the summary of a job whose run wrote no summary, for example because the run never began."""

_RECORDS = (FAILURE_FILE, SUMMARY_FILE)
"""Files with an outcome. If both exist, the newer one is valid, because a run can be resumed outside of its sweep."""

FINISHED, DIVERGED, FAILED, INTERRUPTED = "finished", "diverged", "failed", "interrupted"
RUNNING, KILLED, NOT_STARTED = "running", "killed", "not started"

ENDED = (FINISHED, DIVERGED)
"""Statuses of jobs that reached their last step."""


@dataclass(frozen=True)
class Outcome:
    """A job and its status. summary: the summary of the job; None if the job is running or has no summary."""

    number: int
    overrides: Sequence[str]
    swept: Mapping[str, str]
    status: str
    summary: Summary | None = None

    @property
    def error(self) -> Failure | None:
        """The recorded error, None if there is none."""
        return None if self.summary is None else self.summary.error

    @property
    def succeeded(self) -> bool:
        """Whether the job ended without an error. Divergence is an error only with ``train.fail_on_divergence``."""
        return self.status in ENDED and self.error is None

    @property
    def failed(self) -> bool:
        """Whether the job ended with an error and was not interrupted."""
        return self.status == FAILED or (self.status == DIVERGED and self.error is not None)

    @property
    def best(self) -> Mapping[str, float]:
        """Metric -> best value of the run."""
        return {} if self.summary is None else self.summary.best


def read_outcome(job: PlannedJob, sweep_dir: Path) -> Outcome:
    """Return the current outcome of a job. Raises DataError if its files are damaged."""
    directory = sweep_dir / job.directory
    status, summary = (RUNNING, None) if job_is_running(directory) else recorded(directory)
    return Outcome(job.number, job.overrides, job.swept, status, summary)


def recorded(directory: Path) -> tuple[str, Summary | None]:
    """Return status and summary from the files in the directory of a job that is not running."""
    existing = [directory / name for name in _RECORDS if (directory / name).exists()]
    if existing:
        summary = Summary.read(max(existing, key=lambda path: path.stat().st_mtime_ns))
        return summary.status, summary
    return (KILLED if holds_run(directory) else NOT_STARTED), None


def last_ended(directory: Path) -> int | None:
    """Return the time at which a job last ended, in ns by the clock of the file system; None if it never ended."""
    times = [(directory / name).stat().st_mtime_ns for name in _RECORDS if (directory / name).exists()]
    return max(times, default=None)


def failure_summary(error: Exception, directory: Path, overrides: Sequence[str]) -> Summary:
    """Return the summary of a job that ended with an error and whose run wrote no summary."""
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
    """Record the error that ended a job, unless the run of the job has written a summary; raises OSError."""
    # If the directory was in use, the summary in it belongs to another run.
    if isinstance(error, DirectoryInUseError) or not (directory / SUMMARY_FILE).exists():
        directory.mkdir(parents=True, exist_ok=True)
        failure_summary(error, directory, overrides).write(directory / FAILURE_FILE)


def forget(directory: Path) -> None:
    """Remove the outcome of a job before it runs again, so that no old outcome remains if the job is killed."""
    for name in _RECORDS:
        (directory / name).unlink(missing_ok=True)
