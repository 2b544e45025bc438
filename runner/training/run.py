"""One training run: from a checked configuration and a directory to a summary, with or without an error."""

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.checkpoint import CheckpointMeta, weights_sha256
from runner.config.configuration import dump, to_plain
from runner.config.devices import look_at, require_devices
from runner.config.launcher import SweepPlace
from runner.config.schema import Config
from runner.engine.run.kernel_table import native_libraries
from runner.engine.run.session import Session
from runner.errors import NonFiniteLossError
from runner.kernels.gpu.discovery import Found
from runner.plugin import plugin_errors, provenance
from runner.records.data_facts import DataRecord, record_of, write_record
from runner.records.provenance import Provenance, provenance_here
from runner.records.record import Record, summary_tags
from runner.records.run_directory import RunDirectory
from runner.records.stored_run import write_plugins
from runner.records.summary import Summary
from runner.system.cleanup import at_the_end
from runner.system.console import NOT_ON_TERMINAL, logging_to
from runner.system.files import replace_durably
from runner.system.redaction import redact
from runner.system.signals import StopRequest
from runner.tracking import RunInfo, job_name, sweep_name
from runner.training.build import build, open_session
from runner.training.comparison import measured_step_s, predicted_step_s, verdict
from runner.training.devices import log_run_devices
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
from runner.training.saving import Start, continued_start, fresh_start
from runner.training.summary import draft_summary, status_of, with_error, with_results
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
    """Train a configuration in ``run_dir`` and return the summary, which is also written as ``summary.json``.

    resume: continue from the newest checkpoint in ``run_dir``. repeats: run_id of the run that this one repeats, for
    the record. Raises the RunnerError that ended the run, after writing the summary; ConfigError if the code of a
    plugin failed.
    """
    with plugin_errors(provenance()):
        prepared = _prepare(config if resume else with_checkpoint_named(config), run_dir, resume)
        with _opened_directory(prepared, run_dir, resume) as directory:
            draft = log_run_devices(
                prepared.experiment, prepared.found, draft_summary(prepared.experiment, directory, overrides)
            )
            draft = dataclasses.replace(draft, provenance=_write_provenance(directory), repeats=repeats)
            if sweep is not None and sweep.gpus:
                log.info("devices: %s", sweep.gpus)
            training_run = _Run(prepared.experiment, directory, draft, sweep, prepared.start)
            try:
                with plugin_errors(provenance()):  # so that summary and log have the message of the terminal
                    summary = training_run.execute()
            except BaseException as error:
                ended = with_error(training_run.summary, error)
                ended.write(directory.summary_json)
                log.error("%s: %s", ended.status, error, extra=NOT_ON_TERMINAL)
                raise
            summary.write(directory.summary_json)
            return summary


@dataclass(frozen=True)
class _Prepared:
    """A run that can start. found: the devices of this machine. notes: warnings about a resumed run.

    start, data: of a new run; None for a resumed one. placement: the stored placement of a resumed run.
    """

    experiment: Experiment
    found: Found
    notes: Sequence[str]
    start: Start | None
    data: DataRecord | None
    placement: Path | None


def _prepare(config: Config, run_dir: Path, resume: bool) -> _Prepared:
    """Check everything that can be checked before the run directory is opened; nothing is written."""
    notes = [*require_same_plugins(run_dir), *require_same_data(config, run_dir)] if resume else []
    notes += changed_machine_values(config, run_dir) if resume else []
    for note in notes:
        log.warning("%s", note)  # goes to the terminal, because the log of the run is not open yet
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
        return _Prepared(experiment, found, notes, start=None, data=None, placement=placement)
    return _Prepared(experiment, found, notes, fresh_start(experiment), record_of(config.data), placement)


@contextmanager
def _opened_directory(prepared: _Prepared, run_dir: Path, resume: bool) -> Iterator[RunDirectory]:
    """Open the run directory and its log; store the facts from which the run can be continued."""
    with RunDirectory.open(run_dir, resume) as directory, logging_to(directory.log):
        for note in prepared.notes:
            log.warning("%s", note, extra=NOT_ON_TERMINAL)
        directory.summary_json.unlink(missing_ok=True)  # the summary of an earlier start
        if prepared.placement is None:
            directory.placement_json.unlink(missing_ok=True)
        write_plugins(directory.path, provenance())
        if prepared.data is not None:
            write_record(directory.path, prepared.data)
        config = prepared.experiment.config
        plain = to_plain(config)
        # Last, because a directory with a configuration holds a run. A file with secrets is readable by its owner only.
        directory.store_configuration(dump(config).encode(), private=redact(plain) != plain)
        yield directory


def _write_provenance(directory: RunDirectory) -> Provenance:
    """Return the provenance of this start of the run; uncommitted changes of the code are written to a file."""
    provenance_now, changes = provenance_here()
    if changes:
        replace_durably(directory.code_diff, changes.encode())
    return provenance_now


class _Run:
    """One training run in an opened directory. summary: all that is known so far, also after an error."""

    def __init__(
        self,
        experiment: Experiment,
        directory: RunDirectory,
        draft: Summary,
        sweep: SweepPlace | None,
        start: Start | None,
    ) -> None:
        """start: of a new run; None for a resumed run, whose start is read from its directory."""
        self.summary = draft
        self._experiment = experiment
        self._directory = directory
        self._sweep = sweep
        self._resume = start is None
        self._start = start
        self._started = time.monotonic()

    def execute(self) -> Summary:
        """Train and return the summary."""
        start = self._start or continued_start(self._experiment, self._directory)
        self._log_start(start)
        check_finite = self._experiment.config.debug.check_finite
        self._log_kernels()
        if self.summary.emulated:
            log.info("emulated: %s", self.summary.emulated)
        self._log_placement()
        try:
            with (
                StopRequest() as stop,
                open_session(self._experiment, self._directory, check_finite) as session,
            ):
                start.restore(session)
                self._train(session, start, stop)
        except NonFiniteLossError as error:
            name_the_node(error, self._experiment, self._directory)
            raise
        return self.summary

    def _log_start(self, start: Start) -> None:
        """Log a resumed run without a checkpoint or without updates left; log and summarize weights of another run."""
        total = self._experiment.total_steps
        if self._resume and start.checkpoint is None:
            log.warning("no checkpoint in %s: beginning at step 0", self._directory.checkpoints)
        elif self._resume and start.step >= total:
            log.warning(
                "the run is at step %d of %d: nothing is left to train; set a larger train.steps or train.epochs",
                start.step,
                total,
            )
        weights = start.weights
        if weights is not None:
            log.info("%s", weights.report())
            self.summary = dataclasses.replace(
                self.summary,
                init_from=str(weights.path),
                init_taken=list(weights.values),
                init_left=dict(weights.left),
            )

    def _log_kernels(self) -> None:
        """Log which libraries of fast kernels are used, and which are missing and why."""
        libraries = native_libraries()
        for library in libraries:
            if library.missing:
                log.warning("no kernels of %s, slower ones are used: %s", library.name, library.missing)
            else:
                log.info("kernels of %s %s", library.name, library.version)
        missing = {library.name: library.missing for library in libraries if library.missing}
        self.summary = dataclasses.replace(self.summary, kernels_missing={**self.summary.kernels_missing, **missing})

    def _log_placement(self) -> None:
        """Log the devices of the layers, and a step's time next to that of other strategies; measure it if asked."""
        placed, steps = self._experiment.placed, self._experiment.measured_steps
        if placed is None:
            return
        log.info("%s", placement_text(placed.placement))
        log.info("%s", verdict(predicted_step_s(self._experiment), "predicted by the cost model"))
        if steps and not self._resume:
            measured = measured_step_s(self._experiment, self._directory, steps)
            self.summary = dataclasses.replace(self.summary, compared_step_s=measured)
            log.info("%s", verdict(measured, f"measured over {steps} steps each"))

    def _train(self, session: Session, start: Start, stop: StopRequest) -> None:
        record = self._open_record(start.step)
        with at_the_end("closing the record", lambda error: record.close(status_of(error))):
            self._record_artifacts(record)
            trainer = self._trainer(session, record, start, stop)
            with (
                at_the_end("writing the summary", lambda error: self._add_results(session, record, trainer)),
                at_the_end("drawing plots", lambda error: self._draw(record, trainer)),
            ):
                trainer.run()
                weights = weights_sha256(trainer.variables())
                self.summary = dataclasses.replace(self.summary, weights_sha256=weights)
        self.summary = dataclasses.replace(self.summary, status=status_of(None))

    def _record_artifacts(self, record: Record) -> None:
        """Record the configuration, the changes of the code, the graph and the placement."""
        record.configuration(to_plain(self._experiment.config))
        if self._directory.code_diff.exists():
            record.artifact(self._directory.code_diff)
        graph, pictures = self._experiment.program.graph, self._experiment.config.tracking.pictures
        for path in draw_graph(graph, self._directory.graph_dot, pictures):
            record.artifact(path)
        if self._experiment.placed is not None:
            path = self._directory.placement_json
            if not path.exists():
                self._experiment.placed.placement.write(path)
            record.artifact(path)

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

    def _add_results(self, session: Session, record: Record, trainer: Trainer) -> None:
        seconds = time.monotonic() - self._started
        config, directory = self._experiment.config, self._directory
        self.summary = with_results(self.summary, session, record, trainer.progress, config, directory, seconds)
