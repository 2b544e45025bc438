"""The stored files, the tracking record and the summary that training runs and simulated runs have in common."""

import dataclasses
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from runner.config.configuration import dump, to_plain
from runner.config.launcher import SweepPlace
from runner.config.monitor import keeps_best, monitor_of
from runner.config.outcome import changes
from runner.config.schema import Config, worker_processes
from runner.engine.run.session import Session
from runner.errors import DivergenceError, Interrupted, RunnerError
from runner.plugin import provenance
from runner.plugin.session import session_sources
from runner.records.decisions import dropped_by_worker
from runner.records.record import CHANGED_TAG, Record, summary_tags
from runner.records.run_directory import SESSION_FOLDER, RunDirectory
from runner.records.stored_run import write_plugins
from runner.records.summary import Failure, Summary, config_hash, cpu_model, git_commit, step_time, versions
from runner.system.files import replace_durably
from runner.system.redaction import redact
from runner.tasks.base import MAX, MIN
from runner.tracking import RunInfo, job_name, sweep_name
from runner.tracking.base import GROUP_TAG, SEED, group_of
from runner.training.saving import Progress


def store_plugins(directory: RunDirectory) -> None:
    """Store the references of the plugins, and the sources of the classes of this Python session."""
    write_plugins(directory.path, provenance())
    for name, source in session_sources().items():
        (directory.path / SESSION_FOLDER).mkdir(exist_ok=True)
        replace_durably(directory.path / SESSION_FOLDER / name, source.encode())


def store_configuration(directory: RunDirectory, config: Config) -> None:
    """Store the configuration. Call this last, because a directory with a configuration counts as a run."""
    plain = to_plain(config)
    # Only the owner may read a configuration with secrets.
    directory.store_configuration(dump(config).encode(), private=redact(plain) != plain)


def names_of(config: Config) -> str:
    """Return the names of the model, the dataset and the strategy, as text."""
    return f"{config.model.name} {config.data.name} {config.parallelism.name}"


def open_record(
    config: Config,
    directory: RunDirectory,
    sweep: SweepPlace | None,
    summary: Summary,
    *,
    first_step: int = 0,
    resumed: bool = False,
) -> Record:
    """Begin the tracking record of a run. first_step: number of updates before this start of the run."""
    tags = summary_tags(summary)
    if resumed:
        tags.pop(CHANGED_TAG, None)  # a resumed run keeps the tag of its first start
    if sweep is not None and SEED in sweep.swept:
        tags[GROUP_TAG] = group_of(sweep.swept, sweep.directory)
    info = RunInfo(
        run_id=directory.run_id,
        name=job_name(sweep.swept) if sweep is not None and sweep.swept else names_of(config),
        run_dir=directory.path,
        tags=tags,
        first_step=first_step + 1 if first_step else 0,
        history=directory.metrics_jsonl if resumed else None,
        sweep_dir=None if sweep is None else sweep.directory,
        sweep_name="" if sweep is None else sweep.name or sweep_name(sweep.swept, sweep.directory),
    )
    return Record(directory, config.tracking.create(directory.path), info, config.tracking.pictures)


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
        git_commit=_own_commit(),
        emulated=emulated,
        plugins=provenance(),
    )


@cache
def _own_commit() -> str | None:
    """Return the git commit of this package, cached because the imported code does not change."""
    return git_commit(Path(__file__).parent)


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
    # A run can end with an error before the checkpoint of its best step is written.
    kept = step if keeps_best(config) and (directory.checkpoints / f"step-{step}").exists() else None
    summary = record.results(summary, kept, lambda metric: config.task.direction(metric) == MIN)
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
        headline=summary.headline | monitored,
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
    code = error.exit_code if isinstance(error, RunnerError) else None
    return dataclasses.replace(summary, status=status_of(error), error=Failure(type(error).__name__, str(error), code))
