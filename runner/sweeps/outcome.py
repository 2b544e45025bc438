"""The outcome of a job, read from the files in the job's directory; any process may have run the job."""

import contextlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.config.monitor import Monitor
from runner.errors import DirectoryInUseError, Interrupted, RunnerError
from runner.records.run_directory import SUMMARY_FILE, holds_run
from runner.records.summary import SIMULATED, Failure, Summary, cpu_model, versions
from runner.sweeps.locks import JOB_LOCK, is_held
from runner.sweeps.plan import PlannedJob, job_label
from runner.tasks.base import MAX
from runner.tracking.origin import ORIGIN_FILE, Origin

FAILURE_FILE = "failure.json"
"""The file with the summary of a job whose run wrote no summary, for example because the run never began."""

_RECORDS = (FAILURE_FILE, SUMMARY_FILE)
"""Files with an outcome. If both exist, the newer one is valid, because a run can be resumed outside its sweep."""

FINISHED, DIVERGED, FAILED, INTERRUPTED = "finished", "diverged", "failed", "interrupted"
RUNNING, KILLED, NOT_STARTED = "running", "killed", "not started"

COMPLETE = (FINISHED, SIMULATED)
"""Statuses of jobs whose metrics count."""

ENDED = (*COMPLETE, DIVERGED)
"""Statuses of jobs that reached their last step."""


@dataclass(frozen=True)
class Outcome:
    """A job and its status. summary: the summary of the job; None if the job is running or has no summary.

    directory: the job's directory. mlflow_run_id: the identifier of its run in MLflow, "" if there is none.
    """

    number: int
    overrides: Sequence[str]
    swept: Mapping[str, str]
    status: str
    summary: Summary | None = None
    directory: str = ""
    mlflow_run_id: str = ""

    @property
    def error(self) -> Failure | None:
        """The recorded error, None if there is none."""
        return None if self.summary is None else self.summary.error

    @property
    def value(self) -> float | None:
        """The value by which jobs are compared; None if there is none."""
        return None if self.summary is None else self.metrics.get(str(self.summary.monitor))

    def value_or_error(self) -> float | RunnerError:
        """Return the value by which jobs are compared, or an error with the message of the error that ended the job."""
        label = job_label(self.number, self.swept)
        if not self.succeeded:
            return RunnerError(f"{label}: {self.status if self.error is None else self.error.message}")
        return RunnerError(f"{label}: the job has no value of its metric") if self.value is None else self.value

    @property
    def succeeded(self) -> bool:
        """Whether the job ended without an error. Divergence is an error only with ``train.fail_on_divergence``."""
        return self.status in ENDED and self.error is None

    @property
    def failed(self) -> bool:
        """Whether the job ended with an error and was not interrupted."""
        return self.status == FAILED or (self.status == DIVERGED and self.error is not None)

    @property
    def complete(self) -> bool:
        """Whether the job reached its last step, and its loss did not explode."""
        return self.status in COMPLETE

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metric -> value of the network that the run keeps: see ``headline`` of :class:`Summary`."""
        return {} if self.summary is None else self.summary.headline


_ANY_METRIC = Monitor("test/loss", highest=False)


def monitor_of_outcomes(outcomes: Iterable[Outcome]) -> Monitor:
    """Return the metric by which jobs are compared, from the first summary that names it; needs no plugins."""
    summaries = (outcome.summary for outcome in outcomes if outcome.summary is not None)
    return next((_monitor(each.monitor, each.direction) for each in summaries if each.monitor), _ANY_METRIC)


def _monitor(metric: str, direction: str) -> Monitor:
    # A summary of version 0.1 has no direction.
    return Monitor(metric, direction == MAX or (not direction and metric.endswith("/accuracy")))


def read_outcome(job: PlannedJob, sweep_dir: Path) -> Outcome:
    """Return the current outcome of a job. Raises DataError if its files are damaged."""
    directory = sweep_dir / job.directory
    status, summary = (RUNNING, None) if is_held(directory / JOB_LOCK) else recorded(directory)
    return Outcome(job.number, job.overrides, job.swept, status, summary, str(directory), _mlflow_run_id(directory))


def _mlflow_run_id(directory: Path) -> str:
    if not (directory / ORIGIN_FILE).exists():
        return ""
    with contextlib.suppress(ValueError):  # a damaged file is reported by ``runner sync``, which needs it
        return Origin.read(directory).mlflow_run_id
    return ""


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


def has_ended(directory: Path, before: int | None) -> bool:
    """Return whether a job reached its last step or ended again, and no process still runs it.

    before: time of its previous end, if any. A process writes the summary of a run before it ends the tracking record.
    """
    ended = recorded(directory)[0] in ENDED or last_ended(directory) not in (None, before)
    return ended and not is_held(directory / JOB_LOCK)


def record_failure(error: Exception, directory: Path, overrides: Sequence[str]) -> None:
    """Record the error that ended a job, unless the run of the job has written a summary; raises OSError."""
    # If the directory was in use, the summary in it belongs to another run.
    if not isinstance(error, DirectoryInUseError) and (directory / SUMMARY_FILE).exists():
        return
    exit_code = error.exit_code if isinstance(error, RunnerError) else None
    summary = Summary(
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
    directory.mkdir(parents=True, exist_ok=True)
    summary.write(directory / FAILURE_FILE)


def remove_outcome(directory: Path) -> None:
    """Remove the outcome of a job before it runs again, so that no old outcome remains if the job is killed."""
    for name in _RECORDS:
        (directory / name).unlink(missing_ok=True)
