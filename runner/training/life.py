"""One life of a run: from a checked configuration and a directory to a summary, however it ends."""

from __future__ import annotations

import dataclasses
import logging
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.checkpoint import CheckpointMeta, weights_sha256
from runner.cleanup import at_the_end
from runner.config.configuration import dump, load_stored, to_plain
from runner.config.monitor import keeps_best, monitor_of
from runner.config.schema import Config
from runner.engine.kernel_table import native_libraries
from runner.engine.session import Session
from runner.errors import ConfigError, Interrupted, NonFiniteLossError, RunnerError
from runner.files import replace_durably
from runner.plugin import changed_plugins, provenance
from runner.records.data_facts import write_facts
from runner.records.decisions import dropped_by_worker
from runner.records.provenance import Provenance, provenance_here
from runner.records.record import Record
from runner.records.run_directory import CONFIG_FILE, PLACEMENT_FILE, SUMMARY_FILE, RunDirectory
from runner.records.summary import Failure, Summary, config_hash, git_commit, processor, step_time, versions
from runner.records.tags import summary_tags
from runner.redaction import SecretlessFormatter, redact
from runner.signals import StopRequest
from runner.sweep.place import SweepPlace
from runner.tracking import RunInfo, job_name, sweep_name
from runner.training.build import build, open_session
from runner.training.comparison import measured_step_s, predicted_step_s, verdict
from runner.training.display import create_display
from runner.training.experiment import Experiment
from runner.training.graph_picture import draw_graph
from runner.training.memory import require_memory
from runner.training.non_finite import name_the_node
from runner.training.placement import placement_text
from runner.training.standing import Standing
from runner.training.start import Start, begin, continued_start, fresh_start
from runner.training.trainer import Progress, Trainer

log = logging.getLogger(__name__)


def run(
    config: Config,
    run_dir: Path,
    *,
    overrides: Sequence[str],
    sweep: SweepPlace | None = None,
    resume: bool = False,
    repeats: str = "",
) -> Summary:
    """Train a configuration in ``run_dir``, from its newest checkpoint when ``resume``; return the summary.

    repeats: run_id of the run of which this is a repetition, for the record. summary.json is written however the run
    ends. Raises the RunnerError that ended it, if one did.
    """
    if resume:
        _require_same_plugins(run_dir)
    placement = _kept_placement(config, run_dir) if resume else None
    experiment = build(config, placement)
    _require_resumable(experiment, resume)
    _require_whole_record(experiment)
    experiment.config.data.require_present()
    require_memory(experiment)
    start = None if resume else fresh_start(experiment)
    with RunDirectory.open(run_dir, resume) as directory, _logging_to(directory.log):
        directory.summary_json.unlink(missing_ok=True)  # of an earlier start, no news of this one
        if placement is None:
            directory.placement_json.unlink(missing_ok=True)
        _store(config, directory)
        if not resume:
            write_facts(directory.path, experiment.config.data.facts())
        draft = dataclasses.replace(
            _draft(experiment, directory, overrides), provenance=_keep_provenance(directory), repeats=repeats
        )
        life = _Life(experiment, directory, draft, sweep, start)
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
        start: Start | None,
    ) -> None:
        """start: of a new run; None for one that goes on."""
        self.summary = draft
        self._experiment = experiment
        self._directory = directory
        self._sweep = sweep
        self._resume = start is None
        self._start = start
        self._started = time.monotonic()

    def execute(self) -> Summary:
        """Train and return the summary; ``self.summary`` also holds what is known when an error passes."""
        start = self._start or continued_start(self._experiment, self._directory)
        self._tell_start(start)
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
                begin(session, start)
                self._train(session, start, stop)
        except NonFiniteLossError as error:
            name_the_node(error, self._experiment, self._directory)
            raise
        return self.summary

    def _tell_start(self, start: Start) -> None:
        """Say in log and summary what the run begins with, where that is not its own."""
        weights = start.weights
        if weights is not None:
            log.info("%s", weights.report())
            self.summary = dataclasses.replace(
                self.summary,
                init_from=str(weights.path),
                init_taken=list(weights.values),
                init_left=dict(weights.left),
            )

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

    def _train(self, session: Session, start: Start, stop: StopRequest) -> None:
        record = self._open_record(start.step)
        with at_the_end("closing the record", lambda error: record.close(_status(error))):
            record.configuration(to_plain(self._experiment.config))
            if self._directory.code_diff.exists():
                record.artifact(self._directory.code_diff)
            for path in draw_graph(self._experiment.program.graph, self._directory.graph_dot):
                record.artifact(path)
            self._keep_placement(record)
            trainer = self._trainer(session, record, start, stop)
            with (
                at_the_end("summing up", lambda error: self._sum_up(session, record, trainer.progress)),
                at_the_end("drawing plots", lambda error: self._draw(record, trainer)),
            ):
                trainer.run()
                weights = weights_sha256(trainer.variables())
                self.summary = dataclasses.replace(self.summary, weights_sha256=weights)
        self.summary = dataclasses.replace(self.summary, status=_status(None))

    def _trainer(self, session: Session, record: Record, start: Start, stop: StopRequest) -> Trainer:
        directory = self._directory
        meta = CheckpointMeta(self.summary.config_hash, directory.run_id, directory.epoch, 0, start.progress)
        return Trainer(
            self._experiment,
            session,
            self._directory,
            record,
            create_display(),
            stop,
            meta=meta,
            first_step=start.step,
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
            tags=summary_tags(self.summary),
            first_step=first_step + 1 if first_step else 0,
            history=self._directory.metrics_jsonl if self._resume else None,
            sweep_dir=None if self._sweep is None else self._sweep.directory,
            sweep_name="" if self._sweep is None else sweep_name(self._sweep.swept),
        )
        return Record(self._directory, tracker, info)

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
            stopped=progress.stopped,
            **self._best_checkpoint(progress.standing),
            bytes_sent_per_worker=session.sent_bytes(),
            peak_memory_bytes=session.peak_memory_bytes(),
            dropped_shares=dropped_shares,
            dropped_examples=dropped_examples,
        )

    def _best_checkpoint(self, standing: Standing) -> dict[str, Any]:
        """What the summary says of the monitored metric."""
        config, step = self._experiment.config, standing.best_step
        kept = f"{self._directory.checkpoints.name}/step-{step}" if step is not None and keeps_best(config) else None
        return {
            "monitor": monitor_of(config).metric,
            "best_value": standing.best,
            "best_step": step,
            "best_checkpoint": kept,
        }


def _store(config: Config, directory: RunDirectory) -> None:
    """Write what the run is continued from: whole, so where it has secrets for the eyes of its owner only."""
    plain = to_plain(config)
    directory.store_configuration(dump(config).encode(), private=redact(plain) != plain)


def _require_resumable(experiment: Experiment, resume: bool) -> None:
    """Raise ConfigError for a run that repeats another and is to go on: its order is known from the beginning alone."""
    wish = experiment.program.one_process
    if resume and wish is not None and wish.replay is not None:
        raise ConfigError(
            f"resume with parallelism.replay={wish.replay}: a run is repeated from its first step on; start it anew"
        )


def _require_same_plugins(run_dir: Path) -> None:
    """Raise ConfigError where a plugin is another than at the start before, whose summary this one's will replace."""
    summary_json = run_dir / SUMMARY_FILE
    changed = list(changed_plugins(Summary.read(summary_json).plugins)) if summary_json.is_file() else []
    if changed:
        raise ConfigError(
            f"resume={run_dir}: {'; '.join(map(str, changed))}. Start it anew, or go on with the plugin as it was"
        )


def _require_whole_record(experiment: Experiment) -> None:
    """Raise ConfigError where a record that is to be repeated ends before the run does.

    With train.patience a run may end early, and its repetition then does after the same update.
    """
    recorded, total = experiment.program.replayed_steps, experiment.total_steps
    if recorded is not None and recorded < total and experiment.config.train.patience is None:
        config: Any = experiment.config
        raise ConfigError(
            f"parallelism.replay={config.parallelism.replay}: it has {recorded} updates, but {total} are to be made: "
            "that run did not come to its end, and only what is recorded as a whole can be repeated"
        )


def _kept_placement(config: Config, run_dir: Path) -> Path | None:
    """Where the layers of a run that goes on are and stay: nowhere, if another strategy is to go on."""
    path, stored = run_dir / PLACEMENT_FILE, run_dir / CONFIG_FILE
    if not path.exists() or (stored.exists() and load_stored(stored).parallelism != config.parallelism):
        return None
    return path


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
        plugins=provenance(),
    )


def _keep_provenance(directory: RunDirectory) -> Provenance:
    """Where this start of the run comes from; the changes of its code go to a file of the run."""
    provenance, changes = provenance_here()
    if changes:
        replace_durably(directory.code_diff, changes.encode())
    return provenance


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
