"""The report of a sweep: its exit code, and its tables on the terminal, in files and in the tracking record."""

import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from runner.config.configuration import load_stored
from runner.config.monitor import Monitor, monitor_of, monitor_of_stored
from runner.config.schema import Config
from runner.records.late_tracking import LateRecords, late_runs, store_setting, write_late
from runner.sweep.locks import sweep_lock
from runner.sweep.outcome import FAILED, FINISHED, INTERRUPTED, RUNNING, Outcome, last_ended, read_outcome
from runner.sweep.plan import FROZEN_FILE, PLAN_FILE, Plan
from runner.sweep.table import SweepTable, over_seeds, seeds_table, shown_value, sweep_table, swept_values
from runner.tracking.base import SweepResult
from runner.tracking.mlflow_sweep import SWEEP_FILE, end_parent
from runner.tracking.origin import ORIGIN_FILE, Origin
from runner.tracking.replay import Replay

FAILED_EXIT_CODE = 1
_ANY_METRIC = Monitor("test/accuracy")


def report_plan(plan: Plan, directory: Path, *, interrupted: bool = False) -> int:
    """Report on the jobs of a planned sweep; return the exit code."""
    outcomes = [read_outcome(job, directory) for job in plan.grid]
    frozen = _frozen_file(plan, directory)
    return report(outcomes, None if frozen is None else load_stored(frozen), directory, interrupted=interrupted)


def show_plan(plan: Plan, directory: Path) -> None:
    """Print the table of a planned sweep without writing any file; works without the plugins of the sweep."""
    outcomes = [read_outcome(job, directory) for job in plan.grid]
    _terminal_table(outcomes, planned_monitor(plan, directory)).print()


def planned_monitor(plan: Plan, directory: Path) -> Monitor:
    """Return the metric by which the jobs of a planned sweep are compared; works without the plugins of the sweep."""
    frozen = _frozen_file(plan, directory)
    return _ANY_METRIC if frozen is None else monitor_of_stored(frozen)


def _frozen_file(plan: Plan, directory: Path) -> Path | None:
    """Return the ``frozen.yaml`` of any job: all have the same metric and tracking settings. None if no job has one."""
    paths = (directory / job.directory / FROZEN_FILE for job in plan.grid)
    return next((path for path in paths if path.exists()), None)


def report(outcomes: Sequence[Outcome], config: Config | None, directory: Path, *, interrupted: bool) -> int:
    """Print and store the tables, end the tracking record of the sweep, and return the exit code: 0 if all finished.

    Pending tracking records of jobs that are not running are written to the store. After an interruption, the pending
    records are only reported, because the process should end soon. config: the configuration of one job; None if no
    job has a valid configuration, so that there is no tracking record to end.
    """
    monitor = _ANY_METRIC if config is None else monitor_of(config)
    _terminal_table(outcomes, monitor).print()
    files, description = write_tables(outcomes, monitor, directory)
    done = all(outcome.status == FINISHED for outcome in outcomes)
    status = INTERRUPTED if interrupted else FINISHED if done else FAILED
    _write_late(directory, interrupted)
    if config is not None:
        config.tracking.finish_sweep(directory, _result(status, outcomes, monitor, files, description))
    if status != FINISHED:
        jobs = f"{sum(outcome.status == FAILED for outcome in outcomes)} of {len(outcomes)} jobs failed"
        what = f"sweep interrupted, {jobs}" if interrupted else jobs
        # A sweep has no plan if its jobs were not known in advance; such a sweep cannot be resumed.
        resume = f"; run the remaining jobs with: runner sweep resume {shlex.quote(str(directory))}"
        more = resume if (directory / PLAN_FILE).exists() else ""
        print(f"runner: {what}; see {directory}{more}", file=sys.stderr)
    return 0 if done else FAILED_EXIT_CODE


def _write_late(directory: Path, interrupted: bool) -> None:
    late = late_runs(directory)
    outcome = (
        LateRecords(left={"sweep interrupted": late} if late else {}) if interrupted else write_late(late, Replay())
    )
    for line in outcome.lines([directory]):
        print(f"runner: {line}", file=sys.stderr)


def _terminal_table(outcomes: Sequence[Outcome], monitor: Monitor) -> SweepTable:
    groups = over_seeds(outcomes, monitor)
    return seeds_table(groups, monitor) if groups else sweep_table(outcomes, monitor)


def write_tables(outcomes: Sequence[Outcome], monitor: Monitor, directory: Path) -> tuple[list[Path], str]:
    """Write the tables to files; return the paths of the files, and the tables in Markdown."""
    jobs, groups = sweep_table(outcomes, monitor), over_seeds(outcomes, monitor)
    contents = {"jobs.csv": jobs.csv()}
    markdown = jobs.markdown()
    if groups:
        contents["seeds.csv"] = seeds_table(groups, monitor, columns_apart=True).csv()
        markdown = f"{seeds_table(groups, monitor).markdown()}\n\nEvery seed:\n\n{markdown}"
    contents["jobs.md"] = f"{markdown}\n"
    for name, text in contents.items():
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in contents], markdown


def recorded_sweeps(directories: Iterable[Path]) -> list[Path]:
    """Return the directories, among these and their parents, of planned sweeps with a tracking record, each once."""
    around = ((directory, *directory.parents) for directory in directories)
    found = (
        next((place for place in places if (place / PLAN_FILE).is_file() and (place / SWEEP_FILE).is_file()), None)
        for places in around
    )
    return [sweep for sweep in dict.fromkeys(found) if sweep is not None]


def end_late(directory: Path) -> None:
    """End the tracking record of a sweep after its last job: set the status from the outcomes, and add the tables.

    Does nothing while a job runs. Raises DirectoryInUseError while the sweep runs; StoreUnavailableError if the store
    fails; ConfigError, DataError, OSError or ValueError if a file of the sweep is damaged.
    """
    with sweep_lock(directory):
        plan = Plan.read(directory)
        jobs = [directory / job.directory for job in plan.grid]
        outcomes = [read_outcome(job, directory) for job in plan.grid]
        recorded = next((job for job in jobs if (job / ORIGIN_FILE).exists()), None)
        ended_ns = [ended for job in jobs if (ended := last_ended(job)) is not None]
        if recorded is None or not ended_ns or any(outcome.status == RUNNING for outcome in outcomes):
            return
        files, description = write_tables(outcomes, planned_monitor(plan, directory), directory)
        result = _result(_status(outcomes), outcomes, planned_monitor(plan, directory), files, description)
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
    # Names without a slash: MLflow shows these metrics in the last section of charts, after those of the jobs.
    metrics = {f"jobs_{name}": float(counts[name]) for name in (FINISHED, FAILED)}
    values = [outcome.best[monitor.metric] for outcome in outcomes if monitor.metric in outcome.best]
    if values:
        metrics[f"best_{monitor.metric.replace('/', '_')}"] = max(values) if monitor.highest else min(values)
    return SweepResult(status, artifacts, description, params, metrics)


def _status(outcomes: Sequence[Outcome]) -> str:
    found = {outcome.status for outcome in outcomes}
    if found <= {FINISHED}:
        return FINISHED
    return FAILED if found <= {FINISHED, FAILED} else INTERRUPTED
