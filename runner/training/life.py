"""One life of a run: from a checked configuration and a directory to a summary, however it ends."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from runner.checkpoint import CheckpointMeta, weights_sha256
from runner.config.configuration import dump, to_plain
from runner.config.devices import look_at, require_devices
from runner.config.launcher import SweepPlace
from runner.config.schema import Config
from runner.engine.run.kernel_table import native_libraries
from runner.engine.run.session import Session
from runner.errors import NonFiniteLossError
from runner.plugin import faults_told, provenance
from runner.records.data_facts import record_of, write_record
from runner.records.provenance import Provenance, provenance_here
from runner.records.record import Record, summary_tags
from runner.records.run_directory import RunDirectory
from runner.records.stored_run import write_plugins
from runner.records.summary import Summary
from runner.system.cleanup import at_the_end
from runner.system.files import replace_durably
from runner.system.redaction import redact
from runner.system.signals import StopRequest
from runner.tracking import RunInfo, job_name, sweep_name
from runner.training.build import build, open_session
from runner.training.comparison import measured_step_s, predicted_step_s, verdict
from runner.training.devices import tell_devices
from runner.training.display import create_display
from runner.training.experiment import Experiment
from runner.training.gpu_memory import require_gpu_memory
from runner.training.graph_picture import draw_graph
from runner.training.initial_weights import with_checkpoint_named
from runner.training.memory import require_memory
from runner.training.non_finite import name_the_node
from runner.training.placement import placement_text
from runner.training.preconditions import (
    changed_machine_values,
    kept_placement,
    require_record_of_one_configuration,
    require_resumable,
    require_same_data,
    require_same_normalisation,
    require_same_plugins,
    require_whole_record,
)
from runner.training.progress import Progress
from runner.training.run_log import TOLD_OTHERWISE, logging_to
from runner.training.start import Start, begin, continued_start, fresh_start, tell_continued
from runner.training.summing_up import draft_of, failed, status_of, summed_up
from runner.training.trainer import Trainer

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
    ends. Raises the RunnerError that ended it, if one did; ConfigError for a fault in a plugin's code.
    """
    with faults_told(provenance()):
        return _run(config, run_dir, overrides, sweep, resume, repeats)


def _run(
    config: Config, run_dir: Path, overrides: Sequence[str], sweep: SweepPlace | None, resume: bool, repeats: str
) -> Summary:
    if not resume:
        config = with_checkpoint_named(config)
    notes = [*require_same_plugins(run_dir), *require_same_data(config, run_dir)] if resume else []
    notes += changed_machine_values(config, run_dir) if resume else []
    for note in notes:
        log.warning("%s", note)  # on the terminal: no log of the run is open yet
    found = look_at(config.cluster)
    require_devices(config, found)
    placement = kept_placement(config, run_dir) if resume else None
    experiment = build(config, placement)
    require_resumable(config, resume)
    require_whole_record(experiment)
    require_record_of_one_configuration(config)
    experiment.config.data.require_present()
    require_memory(experiment)
    require_gpu_memory(experiment, found.gpus)
    if resume:
        require_same_normalisation(config, run_dir)
    start = None if resume else fresh_start(experiment)
    data = None if resume else record_of(config.data)
    with RunDirectory.open(run_dir, resume) as directory, logging_to(directory.log):
        for note in notes:
            log.warning("%s", note, extra=TOLD_OTHERWISE)
        directory.summary_json.unlink(missing_ok=True)  # of an earlier start, no news of this one
        if placement is None:
            directory.placement_json.unlink(missing_ok=True)
        write_plugins(directory.path, provenance())
        if data is not None:
            write_record(directory.path, data)
        _store(config, directory)  # last: only now does the directory hold a run
        draft = dataclasses.replace(
            tell_devices(experiment, found, draft_of(experiment, directory, overrides)),
            provenance=_keep_provenance(directory),
            repeats=repeats,
        )
        if sweep is not None and sweep.gpus:
            log.info("devices: %s", sweep.gpus)
        life = _Life(experiment, directory, draft, sweep, start)
        try:
            with faults_told(provenance()):  # summary and log are to say what the terminal does
                summary = life.execute()
        except BaseException as error:
            ended = failed(life.summary, error)
            ended.write(directory.summary_json)
            log.error("%s: %s", ended.status, error, extra=TOLD_OTHERWISE)
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
        if self._resume:
            tell_continued(start, self._experiment, self._directory)
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
        self.summary = dataclasses.replace(self.summary, kernels_missing={**self.summary.kernels_missing, **missing})

    def _tell_placement(self) -> None:
        """Say where layers are and how a step compares with those of other strategies: predicted, measured if asked."""
        settled, steps = self._experiment.settled, self._experiment.measured_steps
        if settled is None:
            return
        log.info("%s", placement_text(settled.placement))
        log.info("%s", verdict(predicted_step_s(self._experiment), "predicted by the cost model"))
        if steps and not self._resume:
            measured = measured_step_s(self._experiment, self._directory, steps)
            self.summary = dataclasses.replace(self.summary, compared_step_s=measured)
            log.info("%s", verdict(measured, f"measured over {steps} steps each"))

    def _train(self, session: Session, start: Start, stop: StopRequest) -> None:
        record = self._open_record(start.step)
        with at_the_end("closing the record", lambda error: record.close(status_of(error))):
            record.configuration(to_plain(self._experiment.config))
            if self._directory.code_diff.exists():
                record.artifact(self._directory.code_diff)
            graph, pictures = self._experiment.program.graph, self._experiment.config.tracking.pictures
            for path in draw_graph(graph, self._directory.graph_dot, pictures):
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
        self.summary = dataclasses.replace(self.summary, status=status_of(None))

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
        return Record(self._directory, tracker, info, config.tracking.pictures)

    def _name(self) -> str:
        if self._sweep is not None and self._sweep.swept:
            return job_name(self._sweep.swept)
        config = self._experiment.config
        return f"{config.model.name} {config.data.name} {config.parallelism.name}"

    def _sum_up(self, session: Session, record: Record, progress: Progress) -> None:
        """Put what was done so far into the summary."""
        seconds = time.monotonic() - self._started
        config, directory = self._experiment.config, self._directory
        self.summary = summed_up(self.summary, session, record, progress, config, directory, seconds)


def _store(config: Config, directory: RunDirectory) -> None:
    """Write what the run is continued from: whole, so where it has secrets for the eyes of its owner only."""
    plain = to_plain(config)
    directory.store_configuration(dump(config).encode(), private=redact(plain) != plain)


def _keep_provenance(directory: RunDirectory) -> Provenance:
    """Where this start of the run comes from; the changes of its code go to a file of the run."""
    provenance, changes = provenance_here()
    if changes:
        replace_durably(directory.code_diff, changes.encode())
    return provenance
