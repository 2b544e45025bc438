"""The report of a sweep: its exit code, and its tables on the terminal, in files and in the tracking record."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from runner.config.configuration import load_stored
from runner.config.monitor import Monitor
from runner.config.schema import Config
from runner.errors import ConfigError
from runner.records.late_tracking import LateRecords, late_runs, store_setting, write_late
from runner.sweeps.locks import sweep_lock
from runner.sweeps.outcome import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    Outcome,
    last_ended,
    monitor_of_outcomes,
    read_outcome,
)
from runner.sweeps.plan import FROZEN_FILE, PLAN_FILE, Plan
from runner.sweeps.plot import draw_sweep, speedup_files
from runner.sweeps.table import SweepTable, over_seeds, rank, seeds_table, shown_value, sweep_table, swept_values, typed
from runner.system.files import writing
from runner.tracking.base import SweepResult
from runner.tracking.mlflow_store import SWEEP_FILE, end_parent
from runner.tracking.origin import ORIGIN_FILE, Origin
from runner.tracking.replay import Replay

FAILED_EXIT_CODE = 1
PLOT_FILE = "sweep.png"


@dataclass(frozen=True)
class SweepRecord:
    """Artifacts, description and metrics that replace the plot in the tracking record of a sweep."""

    artifacts: Sequence[Path] = ()
    description: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


def report_plan(
    plan: Plan, directory: Path, again: str, *, interrupted: bool, show: bool, record: SweepRecord | None
) -> int:
    """Store the tables of a sweep, end its tracking record, and return the exit code: 0 if all jobs succeeded.

    Pending tracking records of jobs that are not running are written to the store. After an interruption, the pending
    records are only reported, because the process should end soon. again: the command that runs the remaining jobs.
    show: whether to print the table. record: content of the tracking record in place of the plot; None for the plot.
    """
    outcomes = _outcomes(plan, directory)
    monitor, config = monitor_of_outcomes(outcomes), _configuration(plan, directory)
    pictures = config is not None and config.tracking.pictures
    if show:
        _terminal_table(outcomes, monitor).print()
    files, description = write_tables(outcomes, monitor, directory)
    if pictures and record is None:
        files += filter(None, [draw_sweep(outcomes, monitor, directory / PLOT_FILE)])
    files += speedup_files(outcomes, directory, pictures=pictures)
    done = all(outcome.succeeded for outcome in outcomes)
    status = INTERRUPTED if interrupted else FINISHED if done else FAILED
    _write_late(directory, interrupted)
    if config is not None:
        record = record or SweepRecord()
        description = "\n\n".join(filter(None, (record.description, description)))
        result = _result(status, outcomes, monitor, [*files, *record.artifacts], description)
        config.tracking.finish_sweep(directory, replace(result, metrics={**result.metrics, **record.metrics}))
    if status != FINISHED:
        jobs = f"{sum(outcome.failed for outcome in outcomes)} of {len(outcomes)} jobs failed"
        what = f"sweep interrupted, {jobs}" if interrupted else jobs
        print(f"runner: {what}; see {directory}; run the remaining jobs with: {again}", file=sys.stderr)
    return 0 if done else FAILED_EXIT_CODE


def _outcomes(plan: Plan, directory: Path) -> list[Outcome]:
    return [read_outcome(job, directory) for job in plan.grid]


def show_plan(plan: Plan, directory: Path) -> None:
    """Print the table of a planned sweep without writing any file; works without the plugins of the sweep."""
    outcomes = _outcomes(plan, directory)
    _terminal_table(outcomes, monitor_of_outcomes(outcomes)).print()


def best_directory(plan: Plan, directory: Path) -> Path:
    """Return the directory of the finished job with the best metric. Raises ConfigError if no job finished."""
    finished = [job for job in _outcomes(plan, directory) if job.complete]
    best = _best(finished, monitor_of_outcomes(finished))
    if best is None:
        raise ConfigError(f"{directory}: expected a sweep with a finished job; `runner sweep status` shows its jobs")
    return Path(best.directory)


def _best(outcomes: Iterable[Outcome], monitor: Monitor) -> Outcome | None:
    """Return the finished job with the best metric; None if no job finished."""
    finished = (job for job in outcomes if job.complete)
    return min(finished, key=lambda job: rank(job.complete, job.metrics, monitor), default=None)


def plot_plan(plan: Plan, directory: Path) -> Path:
    """Draw the metric over each swept key; return the path.

    Raises ConfigError if no two finished jobs differ, ResourceError if the file cannot be written.
    """
    outcomes = _outcomes(plan, directory)
    with writing(str(directory / PLOT_FILE), "copy the sweep to a folder that can be written"):
        path = draw_sweep(outcomes, monitor_of_outcomes(outcomes), directory / PLOT_FILE)
    if path is None:
        raise ConfigError(f"{directory}: expected two finished jobs with different overrides; nothing can be drawn")
    return path


def _configuration(plan: Plan, directory: Path) -> Config | None:
    """Return the first valid configuration, because all jobs have equal tracking settings; None if none is valid."""
    paths = (directory / job.directory / FROZEN_FILE for job in plan.grid)
    return next((load_stored(path) for path in paths if path.exists()), None)


def _write_late(directory: Path, interrupted: bool) -> None:
    late = late_runs(directory)
    left = {"sweep interrupted": late} if late else {}
    outcome = LateRecords(left=left) if interrupted else write_late(late, Replay())
    for line in outcome.lines([directory]):
        print(f"runner: {line}", file=sys.stderr)


def _terminal_table(outcomes: Sequence[Outcome], monitor: Monitor) -> SweepTable:
    groups = over_seeds(outcomes, monitor)
    return seeds_table(groups, monitor, narrow=True) if groups else sweep_table(outcomes, monitor)


def write_tables(outcomes: Sequence[Outcome], monitor: Monitor, directory: Path) -> tuple[list[Path], str]:
    """Write the tables to files; return the paths of the files, and the tables in Markdown."""
    jobs, groups = sweep_table(outcomes, monitor), over_seeds(outcomes, monitor)
    contents = {"jobs.csv": jobs.csv()}
    markdown = jobs.markdown()
    if groups:
        contents["seeds.csv"] = seeds_table(groups, monitor).csv()
        markdown = f"{seeds_table(groups, monitor, narrow=True).markdown()}\n\nEvery seed:\n\n{markdown}"
    contents["jobs.md"] = f"{markdown}\n"
    for name, text in contents.items():
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in contents], markdown


def recorded_sweeps(directories: Iterable[Path]) -> list[Path]:
    """Return the sweeps that contain these directories and have a plan and a tracking record; each sweep only once."""
    around = ((directory, *directory.parents) for directory in directories)
    found = (
        next((place for place in places if (place / PLAN_FILE).is_file() and (place / SWEEP_FILE).is_file()), None)
        for places in around
    )
    return [sweep for sweep in dict.fromkeys(found) if sweep is not None]


def end_late(directory: Path) -> None:
    """End the tracking record of a sweep after its last job: set the status from the outcomes, and add the tables.

    Does nothing while a job runs or if no job is tracked. Raises DirectoryInUseError while the sweep runs;
    StoreUnavailableError if the store fails; ConfigError, DataError, OSError or ValueError if a file is damaged.
    """
    with sweep_lock(directory):
        plan = Plan.read(directory)
        jobs = [directory / job.directory for job in plan.grid]
        outcomes = _outcomes(plan, directory)
        recorded = next((job for job in jobs if (job / ORIGIN_FILE).exists()), None)
        ended_ns = [ended for job in jobs if (ended := last_ended(job)) is not None]
        if recorded is None or not ended_ns or any(outcome.status == RUNNING for outcome in outcomes):
            return
        monitor = monitor_of_outcomes(outcomes)
        files, description = write_tables(outcomes, monitor, directory)
        result = _result(_status(outcomes), outcomes, monitor, files, description)
        origin = Origin.read(recorded)
        uri = origin.address(store_setting(recorded), Path.cwd())
        end_parent(uri, origin.experiment, directory, result, max(ended_ns) // 1_000_000)


def _result(
    status: str, outcomes: Sequence[Outcome], monitor: Monitor, artifacts: Sequence[Path], description: str
) -> SweepResult:
    """Return the result of a sweep for its tracking record: swept values, numbers of jobs and the best value."""
    swept = swept_values(outcomes)
    keys = dict.fromkeys(key for values in swept for key in values)
    params = {key: ", ".join(dict.fromkeys(shown_value(values, key) for values in swept)) for key in keys}
    counts = Counter(outcome.status for outcome in outcomes)
    # Names without a slash: MLflow shows these metrics in the last section of charts, after the jobs' metrics.
    metrics = {f"jobs_{name}": float(counts[name]) for name in (FINISHED, FAILED)}
    best = _best(outcomes, monitor)
    if best is not None and monitor.metric in best.metrics:
        metrics[f"best_{typed(monitor.metric)}"] = best.metrics[monitor.metric]
    return SweepResult(status, artifacts, description, params, metrics)


def _status(outcomes: Sequence[Outcome]) -> str:
    if all(outcome.succeeded for outcome in outcomes):
        return FINISHED
    return FAILED if all(outcome.succeeded or outcome.failed for outcome in outcomes) else INTERRUPTED
