"""One life of a run: from a checked configuration and a directory to a summary, however it ends."""

from __future__ import annotations

import dataclasses
import logging
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner.checkpoint import CheckpointMeta, weights_sha256
from runner.cleanup import at_the_end
from runner.config.configuration import dump, to_plain
from runner.config.schema import Config
from runner.engine.kernel_table import native_libraries
from runner.engine.session import Session
from runner.errors import ConfigError, Interrupted, NonFiniteLossError, RunnerError
from runner.files import replace_durably
from runner.records.decisions import dropped_by_worker
from runner.records.record import Record
from runner.records.run_directory import PLACEMENT_FILE, RunDirectory
from runner.records.summary import Failure, Summary, config_hash, git_commit, processor, step_time, versions
from runner.redaction import SecretlessFormatter, redact
from runner.signals import StopRequest
from runner.sweep.place import SweepPlace
from runner.tracking import RunInfo, job_name, sweep_name
from runner.training.build import build, open_session
from runner.training.comparison import measured_step_s, predicted_step_s, verdict
from runner.training.display import create_display
from runner.training.experiment import Experiment
from runner.training.graph_picture import draw_graph
from runner.training.non_finite import name_the_node
from runner.training.placement import placement_text
from runner.training.trainer import Progress, Trainer, begin, newest_checkpoint

log = logging.getLogger(__name__)

# The name under which MLflow's pages show the version of a run's code.
_COMMIT_TAG = "mlflow.source.git.commit"


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
    placement = run_dir / PLACEMENT_FILE
    experiment = build(config, placement if resume and placement.exists() else None)
    _require_resumable(experiment, resume)
    experiment.config.data.require_present()
    with RunDirectory.open(run_dir, resume) as directory, _logging_to(directory.log):
        _store(config, directory.config_yaml)
        life = _Life(experiment, directory, _draft(experiment, directory, overrides), sweep, resume)
        try:
            summary = life.execute()
        except BaseException as error:
            failed = _failed(life.summary, error)
            failed.write(directory.summary_json)
            log.error("%s: %s", failed.status, error)
            raise
        summary.write(directory.summary_json)
        return summary


class _Life:
    """One life of a run, from the opened directory to the finished summary."""

    def __init__(
        self,
        experiment: Experiment,
        directory: RunDirectory,
        draft: Summary,
        sweep: SweepPlace | None,
        resume: bool,
    ) -> None:
        self.summary = draft
        self._experiment = experiment
        self._directory = directory
        self._sweep = sweep
        self._resume = resume
        self._started = time.monotonic()

    def execute(self) -> Summary:
        """Train and return the summary; ``self.summary`` also holds what is known when an error passes."""
        checkpoint = newest_checkpoint(self._experiment, self._directory) if self._resume else None
        first_step = 0 if checkpoint is None else checkpoint.step
        check_finite = self._experiment.config.debug.check_finite
        self._tell_kernels()
        if self.summary.emulated:
            log.info("emulated: %s", self.summary.emulated)
        self._tell_placement()
        try:
            with (
                StopRequest() as stop,
                open_session(self._experiment, self._directory, check_finite) as session,
            ):
                begin(session, checkpoint)
                self._train(session, first_step, stop)
        except NonFiniteLossError as error:
            name_the_node(error, self._experiment, self._directory)
            raise
        return self.summary

    def _tell_kernels(self) -> None:
        """Say in log and summary which libraries of fast kernels are in use, and which are missing and why."""
        libraries = native_libraries()
        for library in libraries:
            if library.missing:
                log.warning("no kernels of %s, slower ones are used: %s", library.name, library.missing)
            else:
                log.info("kernels of %s %s", library.name, library.version)
        missing = {library.name: library.missing for library in libraries if library.missing}
        self.summary = dataclasses.replace(self.summary, kernels_missing=missing)

    def _tell_placement(self) -> None:
        """Say where layers are and how a step compares with those of other strategies: predicted, measured if asked."""
        settled, parallelism = self._experiment.settled, self._experiment.config.parallelism
        if settled is None:
            return
        log.info("%s", placement_text(settled.placement))
        log.info("%s", verdict(predicted_step_s(self._experiment), "predicted by the cost model"))
        if parallelism.compare_steps and not self._resume:
            measured = measured_step_s(self._experiment, self._directory, parallelism.compare_steps)
            self.summary = dataclasses.replace(self.summary, compared_step_s=measured)
            log.info("%s", verdict(measured, f"measured over {parallelism.compare_steps} steps each"))

    def _train(self, session: Session, first_step: int, stop: StopRequest) -> None:
        record = self._open_record(first_step)
        with at_the_end("closing the record", lambda error: record.close(_status(error))):
            record.configuration(to_plain(self._experiment.config))
            for path in draw_graph(self._experiment.program.graph, self._directory.graph_dot):
                record.artifact(path)
            self._keep_placement(record)
            trainer = self._trainer(session, record, first_step, stop)
            with (
                at_the_end("summing up", lambda error: self._sum_up(session, record, trainer.progress)),
                at_the_end("drawing plots", lambda error: self._draw(record, trainer)),
            ):
                trainer.run()
                weights = weights_sha256(trainer.variables())
                self.summary = dataclasses.replace(self.summary, weights_sha256=weights)
        self.summary = dataclasses.replace(self.summary, status=_status(None))

    def _trainer(self, session: Session, record: Record, first_step: int, stop: StopRequest) -> Trainer:
        meta = CheckpointMeta(self.summary.config_hash, self._directory.run_id, self._directory.epoch, examples=0)
        return Trainer(
            self._experiment,
            session,
            self._directory,
            record,
            create_display(),
            stop,
            meta=meta,
            first_step=first_step,
        )

    def _draw(self, record: Record, trainer: Trainer) -> None:
        scores = trainer.progress.scores
        record.plots(None if scores is None else scores.confusion, self._experiment.facts.class_names)
        record.decided(trainer.decided())

    def _keep_placement(self, record: Record) -> None:
        """Write where the layers are, once: a run that goes on leaves them there."""
        settled, path = self._experiment.settled, self._directory.placement_json
        if settled is not None:
            if not path.exists():
                settled.placement.write(path)
            record.artifact(path)

    def _open_record(self, first_step: int) -> Record:
        config = self._experiment.config
        tracker = config.tracking.create(self._directory.path)
        info = RunInfo(
            run_id=self._directory.run_id,
            name=self._name(),
            run_dir=self._directory.path,
            tags=self._tags(),
            first_step=first_step + 1 if first_step else 0,
            history=self._directory.metrics_jsonl if self._resume else None,
            sweep_dir=None if self._sweep is None else self._sweep.directory,
            sweep_name="" if self._sweep is None else sweep_name(self._sweep.swept),
        )
        return Record(self._directory, tracker, info)

    def _tags(self) -> dict[str, str]:
        known = {_COMMIT_TAG: self.summary.git_commit, "runner.emulated": self.summary.emulated}
        return {"runner.run_dir": str(self._directory.path)} | {tag: text for tag, text in known.items() if text}

    def _name(self) -> str:
        if self._sweep is not None and self._sweep.swept:
            return job_name(self._sweep.swept)
        config = self._experiment.config
        return f"{config.model.name} {config.data.name} {config.parallelism.name}"

    def _sum_up(self, session: Session, record: Record, progress: Progress) -> None:
        """Put what was done so far into the summary."""
        final, best = record.final_and_best()
        dropped_shares, dropped_examples = dropped_by_worker(self._directory.contributors_jsonl)
        batch_size = self._experiment.config.train.batch_size
        busy = sum(progress.step_seconds)
        self.summary = dataclasses.replace(
            self.summary,
            kernels={device: "+".join(names) for device, names in session.libraries().items()},
            steps=progress.done,
            examples=progress.done * batch_size,
            wall_seconds=time.monotonic() - self._started,
            step_time_s=step_time(progress.step_seconds),
            examples_per_s=len(progress.step_seconds) * batch_size / busy if busy else None,
            final=final,
            best=best,
            bytes_sent_per_worker=session.sent_bytes(),
            peak_memory_bytes=session.peak_memory_bytes(),
            dropped_shares=dropped_shares,
            dropped_examples=dropped_examples,
        )


def _store(config: Config, path: Path) -> None:
    """Write what the run is continued from: whole, so where it has secrets for the eyes of its owner only."""
    plain = to_plain(config)
    replace_durably(path, dump(config).encode(), mode=0o666 if redact(plain) == plain else 0o600)


def _require_resumable(experiment: Experiment, resume: bool) -> None:
    """Raise ConfigError for a run that repeats another and is to go on: its order is known from the beginning alone."""
    wish = experiment.program.one_process
    if resume and wish is not None and wish.replay is not None:
        raise ConfigError(
            f"resume with parallelism.replay={wish.replay}: a run is repeated from its first step on; start it anew"
        )


def _draft(experiment: Experiment, directory: RunDirectory, overrides: Sequence[str]) -> Summary:
    """What is known of a run before it starts."""
    config = experiment.config
    return Summary(
        run_id=directory.run_id,
        status="failed",
        config_hash=config_hash(to_plain(config)),
        output_dir=str(directory.path),
        strategy=config.parallelism.name,
        workers=experiment.program.workers,
        versions=versions(),
        platform=platform.platform(),
        processor=processor(),
        overrides=list(overrides),
        git_commit=git_commit(Path(__file__).parent),
        emulated=str(experiment.emulation or ""),
    )


def _status(error: BaseException | None) -> str:
    """Of a run that came to this end."""
    if error is None:
        return "finished"
    return "interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed"


def _failed(summary: Summary, error: BaseException) -> Summary:
    code = error.exit_code if isinstance(error, RunnerError) else None
    return dataclasses.replace(
        summary,
        status=_status(error),
        error=Failure(type(error).__name__, str(error), code),
    )


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Send the package's log to a file of the run, from level INFO."""
    package = logging.getLogger("runner")
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(SecretlessFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    level = package.level
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(level)
        handler.close()
