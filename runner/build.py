"""Configuration to experiment to run: the only place that wires the parts together."""

from __future__ import annotations

import dataclasses
import logging
import math
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from runner.checkpoint import CheckpointMeta, load, newest, weights_sha256
from runner.config import dump, to_plain
from runner.config_schema import Config
from runner.data.source import source_from_config
from runner.display import create_display
from runner.engine.cluster_session import ClusterSession
from runner.engine.device import local_cluster
from runner.engine.kernel_table import load_kernels
from runner.engine.session import LocalSession, Session
from runner.errors import CheckpointError, Interrupted, RunnerError
from runner.experiment import Experiment
from runner.files import replace_durably
from runner.graph_picture import draw_graph
from runner.hydra_app import SweepPlace
from runner.record import Record
from runner.run_directory import RunDirectory
from runner.signals import StopRequest
from runner.strategies.base import Task
from runner.summary import (
    Failure,
    Summary,
    config_hash,
    git_commit,
    processor,
    step_time,
    versions,
)
from runner.tracking import RunInfo, job_name
from runner.train import Progress, Trainer, restore

log = logging.getLogger(__name__)


def build(config: Config) -> Experiment:
    """Wire a checked configuration; nothing is read, written or started.

    Raises ConfigError when model, data and strategy do not fit each other.
    """
    parts: Any = config
    facts = parts.data.facts()

    task = Task(
        network=parts.model.network(facts.classes),
        optimizer=parts.optimizer,
        example_shape=facts.shape,
        dtype=config.precision,
        seed=config.seed,
        batch_size=config.train.batch_size,
        eval_batch_size=config.train.eval_batch_size,
        microbatches=config.train.microbatches,
    )
    program = parts.parallelism.build(task)
    steps_per_epoch = facts.train_examples / config.train.batch_size
    if config.train.steps is not None:
        total_steps = config.train.steps
    else:
        total_steps = math.ceil(config.train.epochs * steps_per_epoch)  # type: ignore[operator]
    return Experiment(
        config=config,
        facts=facts,
        program=program,
        cluster=local_cluster(program.workers),
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        threads_per_worker=config.cluster.threads_per_worker,
    )


def run(
    config: Config,
    run_dir: Path,
    *,
    overrides: Sequence[str],
    sweep: SweepPlace | None = None,
    resume: bool = False,
) -> Summary:
    """Train a configuration in ``run_dir``, from its newest checkpoint when ``resume``; return the summary.

    summary.json is written however the run ends. Raises the RunnerError that ended it, if one did.
    """
    started = time.monotonic()
    experiment = build(config)
    with RunDirectory.open(run_dir, resume) as directory, _logging_to(directory.log):
        replace_durably(directory.config_yaml, dump(config).encode())
        draft = _draft(config, directory, overrides)
        try:
            summary = _Run(experiment, directory, draft, sweep, resume).execute(started)
        except BaseException as error:
            failed = _failed(draft, error, time.monotonic() - started)
            failed.write(directory.summary_json)
            log.error("%s: %s", failed.status, error)
            raise
        summary.write(directory.summary_json)
        return summary


class _Run:
    """One life of a run, from the opened directory to the finished summary."""

    def __init__(
        self,
        experiment: Experiment,
        directory: RunDirectory,
        draft: Summary,
        sweep: SweepPlace | None,
        resume: bool,
    ) -> None:
        self._experiment = experiment
        self._directory = directory
        self._draft = draft
        self._sweep = sweep
        self._resume = resume

    def execute(self, started: float) -> Summary:
        """Train and return the summary of a finished run."""
        checkpoint = self._checkpoint()
        first_step = 0 if checkpoint is None else checkpoint.step
        with StopRequest() as stop, ExitStack() as stack:
            session = stack.enter_context(open_session(self._experiment, self._directory))
            if checkpoint is None:
                session.run("init")
            else:
                restore(session, checkpoint.variables)
            record = self._open_record(first_step)
            status = "failed"
            try:
                meta = CheckpointMeta(
                    self._draft.config_hash, self._directory.run_id, self._directory.epoch, examples=0
                )
                trainer = Trainer(
                    self._experiment,
                    session,
                    self._directory,
                    record,
                    create_display(),
                    stop,
                    meta=meta,
                    first_step=first_step,
                )
                progress = trainer.run()
                summary = self._summary(session, record, progress, time.monotonic() - started)
                record.plots(
                    progress.scores.confusion if progress.scores else None,
                    self._experiment.facts.class_names,
                )
                for path in draw_graph(self._experiment.program.graph, self._directory.graph_dot):
                    record.artifact(path)
                status = "finished"
            except Interrupted:
                status = "interrupted"
                raise
            finally:
                record.close(status)
        return summary

    def _checkpoint(self) -> Any:
        if not self._resume:
            return None
        path = newest(self._directory.checkpoints)
        if path is None:
            log.warning("no checkpoint in %s: starting from step 0", self._directory.checkpoints)
            return None
        expected = {
            name: (spec.shape, spec.dtype) for name, spec in self._experiment.program.variables.items()
        }
        found = load(path, expected)
        if found.manifest.meta.run_id != self._directory.run_id:
            raise CheckpointError(
                f"{path} belongs to run {found.manifest.meta.run_id}, "
                f"expected {self._directory.run_id}, the run of this directory"
            )
        return found

    def _open_record(self, first_step: int) -> Record:
        config: Any = self._experiment.config
        tracker = config.tracking.create(self._directory.path)
        sweep_dir = None if self._sweep is None else self._sweep.directory
        info = RunInfo(
            run_id=self._directory.run_id,
            name=self._name(),
            run_dir=self._directory.path,
            tags={"strategy": self._draft.strategy, "git_commit": self._draft.git_commit or ""},
            first_step=first_step + 1 if first_step else 0,
            history=self._directory.metrics_jsonl if self._resume else None,
            sweep_dir=sweep_dir,
            sweep_name="" if sweep_dir is None else f"sweep {sweep_dir.parent.name}/{sweep_dir.name}",
        )
        record = Record(self._directory, tracker, info)
        record.configuration(to_plain(config))
        return record

    def _name(self) -> str:
        pairs = (override.partition("=") for override in self._draft.overrides)
        swept = {key.lstrip("+"): value for key, _, value in pairs}
        return job_name(swept) or f"{self._experiment.config.model.name} {self._draft.strategy}"

    def _summary(
        self, session: Session, record: Record, progress: Progress, wall_seconds: float
    ) -> Summary:
        final, best = record.final_and_best()
        batch_size = self._experiment.config.train.batch_size
        busy = sum(progress.step_seconds)
        return dataclasses.replace(
            self._draft,
            status="finished",
            kernels={device: "+".join(names) for device, names in session.libraries().items()},
            steps=progress.done,
            examples=progress.done * batch_size,
            wall_seconds=wall_seconds,
            step_time_s=step_time(progress.step_seconds),
            examples_per_s=len(progress.step_seconds) * batch_size / busy if busy else None,
            final=final,
            best=best,
            bytes_sent_per_worker=session.sent_bytes(),
            peak_memory_bytes=session.peak_memory_bytes(),
            weights_sha256=weights_sha256(session.run("save")),
        )


@contextmanager
def open_session(experiment: Experiment, directory: RunDirectory) -> Iterator[Session]:
    """Start what runs the experiment: this very process for ``single``, worker processes otherwise."""
    config: Any = experiment.config
    source_document = {
        "config": dataclasses.asdict(config.data),
        "seed": config.seed,
        "batch_size": config.train.batch_size,
        "eval_batch_size": config.train.eval_batch_size,
        "dtype": config.precision,
    }
    if config.parallelism.name == "single":
        with (
            threadpool_limits(experiment.threads_per_worker),
            source_from_config(**source_document) as source,
        ):
            session = LocalSession(
                experiment.program,
                experiment.cluster,
                load_kernels(),
                source,
                check_finite=config.debug.check_finite,
            )
            try:
                yield session
            finally:
                session.close()
    else:
        with ClusterSession(
            experiment.program,
            experiment.cluster,
            load_kernels(),
            source_document,
            run_id=directory.run_id,
            epoch=directory.epoch,
            logs=directory.workers,
            threads=experiment.threads_per_worker,
            check_finite=config.debug.check_finite,
        ) as cluster_session:
            yield cluster_session


def _draft(config: Config, directory: RunDirectory, overrides: Sequence[str]) -> Summary:
    """What is known of a run before it starts."""
    return Summary(
        run_id=directory.run_id,
        status="failed",
        config_hash=config_hash(to_plain(config)),
        output_dir=str(directory.path),
        strategy=config.parallelism.name,
        workers=config.parallelism.workers,
        versions=versions(),
        platform=platform.platform(),
        processor=processor(),
        overrides=list(overrides),
        git_commit=git_commit(Path(__file__).parent),
    )


def _failed(draft: Summary, error: BaseException, wall_seconds: float) -> Summary:
    code = error.exit_code if isinstance(error, RunnerError) else None
    return dataclasses.replace(
        draft,
        status="interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed",
        error=Failure(type(error).__name__, str(error), code),
        wall_seconds=wall_seconds,
    )


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Send the package's log to a file of the run, from level INFO."""
    package = logging.getLogger("runner")
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    level = package.level
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(level)
        handler.close()
