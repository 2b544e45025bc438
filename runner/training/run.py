"""One training run: train a checked configuration in a directory and write a summary, even if the run fails."""

import copy
import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.callback import Callback
from runner.checkpoint import CheckpointMeta, weights_sha256
from runner.config.configuration import to_plain
from runner.config.devices import found_gpus, require_devices
from runner.config.launcher import SweepPlace
from runner.config.schema import Config
from runner.engine.run.kernel_table import native_libraries
from runner.engine.run.session import Session
from runner.errors import NonFiniteLossError, NotStartedAgainError, RunnerError, WorkerLostError
from runner.kernels.gpu.discovery import Found
from runner.plugin import plugin_errors, provenance
from runner.records.data_facts import read_record, record_of, splits_of, write_record
from runner.records.provenance import provenance_here
from runner.records.record import Record
from runner.records.recoveries import count_recoveries
from runner.records.run_directory import RunDirectory, require_unused
from runner.records.summary import Summary
from runner.system.console import NOT_ON_TERMINAL, logging_to
from runner.system.files import replace_durably
from runner.system.shutdown import StopRequest, at_the_end
from runner.tracking.base import BEST_NETWORK, LAST_NETWORK, NO_NETWORK
from runner.training import preconditions, recording
from runner.training.build import build, open_session
from runner.training.callbacks import Callbacks
from runner.training.devices import log_run_devices
from runner.training.display import create_display
from runner.training.experiment import Experiment
from runner.training.graph_picture import draw_graph, write_graph
from runner.training.initial_weights import initial_weights, with_checkpoint_named
from runner.training.memory import require_gpu_memory, require_memory
from runner.training.non_finite import divergence, name_the_node
from runner.training.placement import placement_text
from runner.training.saving import Start, continued_start
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
    callbacks: Sequence[Callback] | Callbacks = (),
) -> Summary:
    """Train or simulate a configuration in ``run_dir``; return the summary, which is also written as ``summary.json``.

    callbacks: objects that are called after the callbacks of the configuration; or all callbacks of a run that lost
    workers and continues without them. resume: continue from the newest checkpoint in ``run_dir``. repeats: run_id of
    the run that this run repeats, stored in the summary; "" for none.
    Raises the RunnerError that ended the run, after writing the summary; ConfigError if the code of a plugin failed.
    """
    with plugin_errors(provenance()):
        if config.simulate.updates is not None:
            # Imported here, because it compiles an event loop that training does not need.
            from runner.training.simulated_run import run_simulated

            return run_simulated(config, run_dir, overrides=overrides, sweep=sweep, resume=resume)
        if not isinstance(callbacks, Callbacks):
            callbacks = Callbacks([*copy.deepcopy(list(config.callbacks.values())), *callbacks])
        if not resume:
            require_unused(run_dir.absolute())
            config = with_checkpoint_named(config)
        try:
            with _prepared(config, run_dir, resume) as (directory, experiment, found, start):
                emulated = str(experiment.emulation or "")
                draft = recording.draft_summary(experiment.config, directory, overrides, emulated)
                draft = log_run_devices(experiment, found, draft)
                origin, changes = provenance_here()
                if changes:
                    replace_durably(directory.code_diff, changes.encode())
                draft = dataclasses.replace(draft, provenance=origin, repeats=repeats)
                if sweep is not None and sweep.gpus:
                    log.info("devices: %s", sweep.gpus)
                return _Run(draft, experiment, directory, sweep, start, callbacks).execute()
        except NotStartedAgainError as lost:
            fewer = preconditions.with_remaining_workers(config, lost)
            log.warning("the run continues from the newest checkpoint with %d workers", lost.remaining)
    return run(fewer, run_dir, overrides=overrides, sweep=sweep, resume=True, repeats=repeats, callbacks=callbacks)


@contextmanager
def _prepared(
    config: Config, run_dir: Path, resume: bool
) -> Iterator[tuple[RunDirectory, Experiment, Found, Start | None]]:
    """Check everything that can be checked; then open the directory of a run and its log, and store the run's facts.

    Nothing is written before all checks have passed. Yields the directory, the experiment, the GPUs of this machine,
    and the start of a new run; None in place of the start for a resumed run.
    """
    notes = preconditions.notes_on_resume(config, run_dir) if resume else []
    if config.cluster.hardware is not None:
        notes.append("cluster.hardware has no effect on training, which uses this machine; see `runner simulate`")
    for note in notes:
        log.warning("%s", note)  # only to the terminal, because the log of the run is not open yet
    found = found_gpus(config.cluster)
    require_devices(config, found)
    placement = preconditions.kept_placement(config, run_dir) if resume else None
    experiment = build(config, placement)
    preconditions.require_data_on_workers(experiment)
    preconditions.require_resumable(config, resume)
    preconditions.require_whole_record(experiment)
    preconditions.require_record_of_one_configuration(config)
    experiment.config.data.require_present()
    if config.adapt.data:
        from runner.training.adaptation.storing import require_adaptation

        require_adaptation(config)
    require_memory(experiment)
    require_gpu_memory(experiment, found.gpus)
    if resume:
        preconditions.require_same_normalisation(config, run_dir)
    start = None if resume else Start(weights=initial_weights(config))
    data = None if resume else record_of(config.data)
    with RunDirectory.open(run_dir, resume) as directory, logging_to(directory.log):
        for note in notes:
            log.warning("%s", note, extra=NOT_ON_TERMINAL)
        directory.summary_json.unlink(missing_ok=True)  # the summary of an earlier start
        if placement is None:
            directory.placement_json.unlink(missing_ok=True)
        recording.store_plugins(directory)
        if data is not None:
            write_record(directory.path, data)
        recording.store_configuration(directory, config)
        yield directory, experiment, found, start


@dataclass
class _Run:
    """One training run in an opened directory.

    summary: facts and results so far, also after an error. new_start: None for a resumed run, whose start is read from
    its directory. record: None until training begins. started: reading of a monotonic clock at the start, in seconds.
    """

    summary: Summary
    experiment: Experiment
    directory: RunDirectory
    sweep: SweepPlace | None
    new_start: Start | None
    callbacks: Callbacks
    record: Record | None = None
    started: float = field(default_factory=time.monotonic)

    def execute(self) -> Summary:
        """Train, write the summary and end the record, even after an error; return the summary."""
        with (
            at_the_end("ending the record", self._end_record),
            at_the_end("writing summary.json", self._write_summary),
            plugin_errors(provenance()),  # first, so that summary, log and terminal show the same message
        ):
            start = self.new_start or continued_start(self.experiment, self.directory)
            self._log_start(start)
            self._log_warm_up()
            self._log_kernels()
            if self.summary.emulated:
                log.info("emulated: %s", self.summary.emulated)
            self._log_placement()
            check_finite = self.experiment.config.debug.check_finite
            try:
                with StopRequest() as stop, open_session(self.experiment, self.directory, check_finite) as session:
                    start.restore(session)
                    self._train(session, start, stop)
            except WorkerLostError as lost:
                if self.summary.weights_sha256 is None:
                    raise
                log.warning("a worker was lost after the last step: %s", lost)
            except NonFiniteLossError as error:
                name_the_node(error, self.experiment, self.directory)
                raise
        return self.summary

    def _write_summary(self, error: BaseException | None) -> None:
        if error is not None:
            self.summary = recording.with_error(self.summary, error)
            log.error("%s: %s", self.summary.status, error, extra=NOT_ON_TERMINAL)
        self.summary.write(self.directory.summary_json)

    def _end_record(self, error: BaseException | None) -> None:
        """End the record with the results and, if requested, the network."""
        record, best_step = self.record, self.summary.best_step
        if record is None:
            return
        status = self.summary.status if error is None else recording.status_of(error)
        with StopRequest(), at_the_end("closing the record", lambda _: record.close(status)):
            if best_step is not None:
                record.best(best_step)
            record.result(self.summary, recording.names_of(self.experiment.config))
            if error is None:
                self._record_network(record)

    def _record_network(self, record: Record) -> None:
        """Export the network that the tracker requests; a failure is logged and does not end the run."""
        config, directory, summary = self.experiment.config, self.directory, self.summary
        step = {NO_NETWORK: None, BEST_NETWORK: summary.best_step, LAST_NETWORK: summary.steps}[config.tracking.exports]
        if step is None:
            return
        # Imported here, because few runs export a network.
        from runner.training.exported import export

        checkpoint = directory.checkpoints / f"step-{step}"
        try:
            record.model(export(config, directory.path, checkpoint, directory.model, summary.versions["runner"]))
        except (RunnerError, OSError) as error:
            log.error("the network of %s is not in the tracking record: %s", checkpoint, error)

    def _log_start(self, start: Start) -> None:
        """Warn if a resumed run has no checkpoint or no updates left; log and record the weights from another run."""
        total, resumed = self.experiment.total_steps, self.new_start is None
        if resumed and start.checkpoint is None:
            log.warning("no checkpoint in %s: beginning at step 0", self.directory.checkpoints)
        elif resumed and start.step >= total:
            log.warning(
                "the run is at step %d of %d: all steps are done; set a larger train.steps or train.epochs",
                start.step,
                total,
            )
        weights = start.weights
        if weights is not None:
            log.info("%s", weights.report())
            self._add_facts(init_from=str(weights.path), init_taken=list(weights.values), init_left=dict(weights.left))

    def _log_warm_up(self) -> None:
        schedule, total = self.experiment.config.schedule, self.experiment.total_steps
        if schedule.warmup_steps >= total:
            log.warning(
                "schedule.warmup_steps=%d with a run of %d steps: the run ends during the warm-up, at %.3g of the "
                "learning rate; use fewer warm-up steps, or a longer run",
                schedule.warmup_steps,
                total,
                schedule.warm_up(total - 1),
            )

    def _log_kernels(self) -> None:
        libraries = native_libraries()
        for library in libraries:
            if library.missing:
                log.warning("kernels of %s are missing, so slower kernels are used: %s", library.name, library.missing)
            else:
                log.info("kernels of %s %s", library.name, library.version)
        missing = {library.name: library.missing for library in libraries if library.missing}
        self._add_facts(kernels_missing={**self.summary.kernels_missing, **missing})

    def _log_placement(self) -> None:
        """Log the devices of the layers, and the predicted and measured step times of this and other strategies."""
        placed = self.experiment.placed
        if placed is None:
            return
        from runner.training.comparison import measured_step_s, predicted_step_s, verdict

        log.info("%s", placement_text(placed.placement))
        log.info("%s", verdict(predicted_step_s(self.experiment), "predicted by the cost model"))
        steps = self.experiment.config.parallelism.layer_placement.measured_steps
        if steps and self.new_start is not None:
            measured = measured_step_s(self.experiment, self.directory, steps)
            self._add_facts(compared_step_s=measured)
            log.info("%s", verdict(measured, f"measured over {steps} steps each"))

    def _add_facts(self, **facts: Any) -> None:
        self.summary = dataclasses.replace(self.summary, **facts)

    def _train(self, session: Session, start: Start, stop: StopRequest) -> None:
        directory, config = self.directory, self.experiment.config
        resumed = self.new_start is None
        facts = (config, directory, self.sweep, self.summary)
        self.record = record = recording.open_record(*facts, first_step=start.step, resumed=resumed)
        self._record_artifacts(record)
        meta = CheckpointMeta(self.summary.config_hash, directory.run_id, directory.epoch, 0, start.progress)
        recovery = None
        if self.experiment.program.one_process is None:
            # Imported here, like the session of workers: the modules for processes and messages take long to import.
            from runner.training.recovery import recovery_of

            recovery = recovery_of(config, session, directory, record, start)
        of_the_run = (create_display(), stop, meta, start.step, self.callbacks, recovery)
        trainer = Trainer(self.experiment, session, directory, record, *of_the_run)

        def add_results(error: BaseException | None) -> None:
            found = (session, record, trainer.progress, config, directory, time.monotonic() - self.started)
            self.summary = recording.with_results(self.summary, *found)
            self._add_facts(recoveries=count_recoveries(directory.recoveries_jsonl))

        def draw(error: BaseException | None) -> None:
            scores = trainer.progress.scores
            record.plots(None if scores is None else scores.confusion, self.experiment.facts.class_names)
            if config.tracking.pictures:
                for path in draw_graph(self.experiment.program.graph, directory.graph_dot):
                    record.artifact(path)
            record.counts(trainer.counts())

        with at_the_end("writing the summary", add_results), at_the_end("drawing plots", draw):
            trainer.run()
            if config.adapt.data:
                self._adapt(record, trainer.progress.done)
            self._add_facts(weights_sha256=weights_sha256(trainer.final_variables()))
        expected = config.task.expected_loss(self.experiment.facts.fields)
        diverged = divergence(record.training_losses(), expected, self.experiment.advice_on_divergence)
        self._add_facts(status=recording.status_of(diverged))
        if diverged is not None:
            if config.train.fail_on_divergence:
                raise diverged
            log.warning("%s", diverged)

    def _adapt(self, record: Record, done: int) -> None:
        """Adapt the network to the configured target and record its scores. done: number of updates of the run."""
        from runner.training.adaptation.storing import adapt_run

        found, files = adapt_run(self.experiment.config, self.directory)
        record.metrics(done, found.metrics)
        for path in files:
            record.artifact(path)
        for method, scores in found.scores.items():
            log.info("adapted to %s with %s: %s", self.experiment.config.adapt.data["name"], method, scores)

    def _record_artifacts(self, record: Record) -> None:
        """Record the configuration, the data, the uncommitted changes of the code, the graph and the placement."""
        config, directory, placed = self.experiment.config, self.directory, self.experiment.placed
        record.configuration(to_plain(config))
        known = read_record(directory.path)
        if known is not None:  # earlier versions stored no facts about the data
            record.data(splits_of(config.data, config.seed, known))
        if directory.code_diff.exists():
            record.artifact(directory.code_diff)
        record.artifact(write_graph(self.experiment.program.graph, directory.graph_dot))
        if placed is not None:
            if not directory.placement_json.exists():
                placed.placement.write(directory.placement_json)
            record.artifact(directory.placement_json)
