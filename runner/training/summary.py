"""The summary of a run: a draft before training, then with the results, then with the error that ended the run."""

import dataclasses
import platform
from collections.abc import Sequence
from pathlib import Path

from runner.config.changes import changes
from runner.config.configuration import to_plain
from runner.config.monitor import keeps_best, monitor_of
from runner.config.schema import Config, worker_processes
from runner.engine.run.session import Session
from runner.errors import DivergenceError, Interrupted, RunnerError
from runner.plugin import provenance
from runner.records.decisions import dropped_by_worker
from runner.records.record import Record
from runner.records.run_directory import RunDirectory
from runner.records.summary import Failure, Summary, config_hash, cpu_model, git_commit, step_time, versions
from runner.tasks.base import MAX, MIN
from runner.training.saving import Progress


def draft_summary(config: Config, directory: RunDirectory, overrides: Sequence[str], emulated: str = "") -> Summary:
    """Return the summary of a run before it starts, with status "failed" until the result is known."""
    return Summary(
        run_id=directory.run_id,
        status="failed",
        config_hash=config_hash(to_plain(config)),
        output_dir=str(directory.path),
        strategy=config.parallelism.name,
        workers=worker_processes(config),
        versions=versions(),
        platform=platform.platform(),
        cpu_model=cpu_model(),
        overrides=list(overrides),
        changed=changes(config),
        git_commit=git_commit(Path(__file__).parent),
        emulated=emulated,
        plugins=provenance(),
    )


def with_results(
    summary: Summary,
    session: Session,
    record: Record,
    progress: Progress,
    config: Config,
    directory: RunDirectory,
    seconds: float,
) -> Summary:
    """Return the summary with the results so far. seconds: wall time of this process."""
    race, dropped_shares, dropped_examples = config.parallelism.race, dict[str, int](), dict[str, int]()
    if race is not None and race.decisions is not None:
        dropped_shares, dropped_examples = dropped_by_worker(directory.decisions_jsonl(race.decisions))
    step, monitor = progress.metric.best_step, monitor_of(config)
    kept = step if keeps_best(config) else None
    results = record.results(kept, lambda metric: config.task.direction(metric) == MIN)
    monitored = {} if kept is None or progress.metric.best is None else {monitor.metric: progress.metric.best}
    batch_size, busy = config.train.batch_size, sum(progress.step_seconds)
    return dataclasses.replace(
        summary,
        kernels={device: "+".join(names) for device, names in session.libraries().items()},
        steps=progress.done,
        examples=progress.done * batch_size,
        wall_seconds=seconds,
        step_time_s=step_time(progress.step_seconds),
        examples_per_s=len(progress.step_seconds) * batch_size / busy if busy else None,
        final=results.final,
        best=results.best,
        evaluations=results.evaluations,
        headline=results.headline | monitored,
        stopped=progress.stopped,
        monitor=monitor.metric,
        direction=MAX if monitor.highest else MIN,
        best_value=progress.metric.best,
        best_step=step,
        best_checkpoint=None if kept is None else f"{directory.checkpoints.name}/step-{kept}",
        bytes_sent_per_worker=session.sent_bytes(),
        peak_memory_bytes=session.peak_memory_bytes(),
        dropped_shares=dropped_shares,
        dropped_examples=dropped_examples,
    )


def status_of(error: BaseException | None) -> str:
    """Return the status of a run that ended with this error, or without one."""
    if error is None:
        return "finished"
    if isinstance(error, DivergenceError):
        return "diverged"
    return "interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed"


def with_error(summary: Summary, error: BaseException) -> Summary:
    """Return the summary of a run that an error ended."""
    code = error.exit_code if isinstance(error, RunnerError) else None
    return dataclasses.replace(summary, status=status_of(error), error=Failure(type(error).__name__, str(error), code))
