"""The training loop: steps, evaluations, checkpoints, and an orderly end after the last step or any error."""

import logging
import math
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from numpy.typing import NDArray

from runner.callback import Callback
from runner.checkpoint import CheckpointMeta
from runner.config.monitor import keeps_best, monitor_of
from runner.config.outcome import outcome_hash
from runner.engine.graph.network import LOSS
from runner.engine.run.session import Session
from runner.engine.run.step_driver import bind
from runner.errors import Interrupted, NonFiniteLossError, NotStartedAgainError, WorkerLostError
from runner.records.endings import Origin, RecordingClients
from runner.records.record import Record
from runner.records.run_directory import RunDirectory
from runner.system.shutdown import StopRequest, at_the_end
from runner.system.text import significant
from runner.tracing.window import TraceWindow, recorded_steps
from runner.training.callbacks import Callbacks
from runner.training.display import Display
from runner.training.evaluation import TEST, BestMetric, evaluate
from runner.training.experiment import Experiment, series_length, train_steps
from runner.training.kept_states import KeptStates
from runner.training.saving import COMPUTED, SECONDS, Progress

if TYPE_CHECKING:
    from runner.training.recovery import Recovery

log = logging.getLogger(__name__)


class Trainer:
    """The training loop of one experiment on one session. Training starts from the current values of the variables."""

    def __init__(
        self,
        experiment: Experiment,
        session: Session,
        directory: RunDirectory,
        record: Record,
        display: Display,
        stop: StopRequest,
        meta: CheckpointMeta,
        first_step: int,
        callbacks: Callbacks,
        recovery: "Recovery | None",
    ) -> None:
        """Prepare the loop.

        meta: entries common to all checkpoints, and the progress at the start of a resumed run. recovery: recovers from
        lost workers; None if a lost worker ends the run.
        """
        self.experiment = experiment
        config = experiment.config
        best = BestMetric.at_start(config, meta.progress)
        seconds, computed = meta.progress.get(SECONDS, 0.0), int(meta.progress.get(COMPUTED, 0))
        self.progress = Progress(first_step, metric=best, seconds=seconds, computed=computed)
        self._session = session
        self._directory = directory
        self._recovery = recovery
        if recovery is not None:
            recovery.boundary = replace(recovery.boundary, progress=replace(self.progress))
        self._record = record
        self._newest_recorded = first_step or None
        self._display = display
        self._stop = stop
        self._callbacks = callbacks
        self._states = KeptStates(experiment, session, directory, record, meta, self._callbacks, recovery)
        self._begin()
        self._one_by_one = config.trace or self._callbacks.override(Callback.on_step)
        self._running = range(0)  # the updates that run now
        self._repeated = range(0)  # the interrupted updates of the newest recovery
        clients = [client.name for client in experiment.program.training]
        steps = recorded_steps(first_step, experiment.total_steps, config.trace_skip, config.trace_steps)
        files = directory.trace_json, directory.trace_summary_json
        self._trace = TraceWindow(session, clients, steps if config.trace else range(0), *files, record.artifact)

    def _begin(self) -> None:
        """Prepare the step driver and the records of its decisions for new or restarted workers."""
        config, done = self.experiment.config, self.progress.done
        race = config.parallelism.race
        self._recording: RecordingClients | None = None
        if race is not None and race.decisions is None:
            devices = tuple(device.name for device in self.experiment.cluster.devices)
            origin = Origin(outcome_hash(config), done, devices)
            self._recording = RecordingClients(self._session, self._directory.endings_jsonl, origin)
        self._step_driver = bind(self.experiment.program.step_driver, self._recording or self._session)
        self._states.begin(self._step_driver, done)

    def run(self) -> Progress:
        """Train to the last step, evaluate and save; return the progress.

        Raises NonFiniteLossError if a loss is not finite; Interrupted, usually after a checkpoint, on a stop request;
        ClusterError if workers are lost and no restart is left.
        """
        total = self.experiment.total_steps
        self._display.start(self.progress.done, total)
        with (
            at_the_end("closing the display", lambda error: self._display.close()),
            at_the_end("writing the record of the used workers", lambda error: self._record_decisions()),
            at_the_end("writing the timeline", self._trace.finish),
            at_the_end("writing a checkpoint", lambda error: self._states.saver.close()),
            at_the_end("closing the records of recoveries and endings", lambda error: self._close_records()),
        ):
            lost: WorkerLostError | None = None
            while True:
                try:
                    if lost is not None:
                        self._recover(lost)
                    self._train_to(total)
                    return self.progress
                except NotStartedAgainError as error:
                    assert self._recovery is not None
                    self._recovery.give_up(error)
                    self._states.save_boundary()
                    raise
                except WorkerLostError as error:
                    lost = error
                    if self._recovery is None:
                        raise
                    steps = self._interrupted()
                    self._recovery.budget.admit(lost, steps[0], self.progress.saved_step, len(steps))

    def _recover(self, lost: WorkerLostError) -> None:
        """Replace the lost worker, and return to the newest boundary or continue from the present state."""
        assert self._recovery is not None
        self._states.saver.check()  # a checkpoint that is being written does not delay the recovery
        self._trace.drop()
        self._close_records()
        self._states.write_decisions()
        # If an evaluation was interrupted, the run returns to the boundary, so that the evaluation is repeated.
        present = self.progress if self._running and self._step_driver.keeps_valid_variables else None
        self._repeated = steps = self._interrupted()
        self._display.message(self._recovery.recover(lost, steps, self._step_driver.can_go_on, present))
        self._running = range(0)
        # The step times of this process include the repeated steps.
        self.progress = replace(self._recovery.boundary.progress, step_seconds=self.progress.step_seconds)
        if self._newest_recorded is not None and self._newest_recorded > self.progress.done:
            self._newest_recorded = None
        self._begin()

    def _interrupted(self) -> range:
        """Return the series of updates that was interrupted, or the next update if no series was running."""
        return self._running or range(self.progress.done, self.progress.done + 1)

    def _close_records(self) -> None:
        if self._recovery is not None:
            self._recovery.close()
        if self._recording is not None:
            self._recording.close()

    def counts(self) -> Mapping[str, Any]:
        """Return the step driver's counts for the run's record, by name; empty if no clients run concurrently."""
        return self._step_driver.record()

    def final_variables(self) -> Mapping[str, NDArray[Any]]:
        """Return every variable by its unsharded name after the end of the run."""
        return self._states.final_variables(self.progress)

    def _record_decisions(self) -> None:
        for path in self._states.write_decisions():
            self._record.artifact(path)
        if self._directory.endings_jsonl.exists():
            self._record.artifact(self._directory.endings_jsonl)

    def _train_to(self, total: int) -> None:
        while self.progress.done < total and not self._ends_early:
            self._steps(self._series())
            if self._recovery is not None:
                self._recovery.after_step(self.progress.done)
            due = self.progress.done % self.experiment.eval_every == 0
            # Evaluate before any checkpoint of this step, because the checkpoint stores the best metric.
            if due or self._is_last:
                self._evaluate(counted=due)
            self._states.after_update(self.progress, ends=self._is_last or self._ends_early)
            self._stop_if_requested()
        if self.progress.scores is None:
            self._evaluate(counted=False)
        self._step_driver.synchronize()  # a callback may have stopped the run after a checkpoint by time
        self._states.save(self.progress)
        self._states.saver.finish()
        if self.progress.done < total:
            why = self._callbacks.reason or self.progress.metric.early_stop_text(self.experiment.config)
            self.progress.stopped = f"after step {self.progress.done} of {total}: {why}"
            self._display.message(f"stopped early {self.progress.stopped}")
            log.info("stopped early %s", self.progress.stopped)

    @property
    def _ends_early(self) -> bool:
        is_evaluated = self.progress.evaluated_step == self.progress.done
        stopped = self._callbacks.stop_step is not None and self._is_last and is_evaluated
        return stopped or self.progress.metric.is_out_of_patience(self.experiment.config)

    @property
    def _last_step(self) -> int:
        """Number of updates of the run: fewer than configured if a callback has stopped it."""
        stop = self._callbacks.stop_step
        return self.experiment.total_steps if stop is None else stop

    @property
    def _is_last(self) -> bool:
        """Whether all steps of the run are done, apart from an early stop by ``train.patience``."""
        return self.progress.done >= self._last_step

    def _series(self) -> range:
        """Return the next series of updates; stop requests and due saves wait until its last update has ended.

        The updates of an interrupted series are repeated one by one, so that a recurring fault has the same step.
        """
        done, config = self.progress.done, self.experiment.config
        longest = self._step_driver.longest_series(done)
        if longest == 1 or self._one_by_one or done in self._repeated or not self.progress.step_seconds:
            return range(done, done + 1)
        every = filter(None, (self.experiment.eval_every, config.checkpoint.every_steps))
        ends = [self._last_step, *(done + each - done % each for each in every)]
        if done < self._repeated.start:
            ends.append(self._repeated.start)
        in_time = done + series_length(longest, self.progress.step_seconds[-1])
        return range(done, max(done + 1, min(in_time, *ends)))

    def _steps(self, steps: range) -> None:
        self._running = steps
        self._trace.before(steps[0])
        started = time.perf_counter()
        answers = train_steps(self._step_driver, self.experiment, steps)
        seconds = (time.perf_counter() - started) / len(steps)
        self._trace.after(steps[-1])
        self._running = range(0)
        for step, answer in zip(steps, answers, strict=True):
            self._record_update(step, answer, seconds)

    def _record_update(self, step: int, answer: Mapping[str, NDArray[Any]], seconds: float) -> None:
        """Add an update to the progress and record its values. seconds: duration of the update."""
        config, task = self.experiment.config, self.experiment.config.task
        loss = float(answer["loss"])
        if not math.isfinite(loss):
            self._raise_non_finite(step, loss, self.experiment.learning_rate(step))
        self.progress.done = step + 1
        self.progress.loss = loss
        self.progress.step_seconds.append(seconds)
        self.progress.seconds += seconds
        self.progress.computed += config.train.batch_size * self._step_driver.passes
        self._display.step(self.progress.done, loss, config.train.batch_size / seconds)
        self._callbacks.on_step(self.progress.done, loss)
        if self.progress.done % config.train.log_every == 0 or self.progress.done == 1 or self._is_last:
            since_last = self.progress.step_seconds[-config.train.log_every :]
            mean_s = sum(since_last) / len(since_last)
            scores = task.scores({name: float(answer[name]) for name in (LOSS, *task.means)}, training=True)
            unit, count = task.unit(self.experiment.facts.fields)  # parts of an example, such as words, or the example
            self._record_metrics(
                {
                    **{f"train/{name}": value for name, value in scores.items()},
                    "train/learning_rate": self.experiment.learning_rate(step),
                    **self._step_driver.metrics(),
                    "perf/step_time_s": mean_s,
                    "perf/examples_per_s": config.train.batch_size / mean_s,
                    f"perf/{unit}_per_s": config.train.batch_size / mean_s * count,
                }
            )

    def _record_metrics(self, values: Mapping[str, float]) -> None:
        """Record values after the newest update; add the examples and seconds so far, as x axes of charts."""
        done, axes = self.progress.done, dict[str, float]()
        if done != self._newest_recorded:  # a chart over a metric needs one value of this metric for each step
            self._newest_recorded = done
            axes = {"train/examples": self.progress.computed, "train/seconds": self.progress.seconds}
        self._record.metrics(done, {**values, **axes})

    def _raise_non_finite(self, step: int, loss: float, rate: float) -> NoReturn:
        # Wait until all overlapping clients have ended and are recorded; otherwise the run could not be repeated.
        with at_the_end("waiting for asynchronous workers", lambda error: self._step_driver.synchronize()):
            advice = self.experiment.advice_on_divergence
            raise NonFiniteLossError(
                step, f"the loss of step {step} is {loss}, with learning rate {significant(rate)}: {advice}"
            )

    def _evaluate(self, *, counted: bool) -> None:
        """Score every split. counted: whether ``train.patience`` counts this evaluation."""
        self._step_driver.synchronize()
        done, task = self.progress.done, self.experiment.config.task
        values = {} if self.progress.loss is None else {"train/loss": self.progress.loss}
        scored: dict[str, float] = {}
        for split, batches in self.experiment.eval_batches.items():
            classes = self.experiment.facts.classes
            scores = evaluate(self._session, task, batches=batches, classes=classes, split=split)
            scored |= scores.of(split)
            shown = [f"{split} {name} {task.text(name, value)}" for name, value in scores.metrics.items()]
            self._display.message(f"step {done}: {', '.join(shown)}")
            if split == TEST:
                self.progress.scores = scores
        self._record_metrics({**scored, "train/epoch": done / self.experiment.steps_per_epoch})
        self.progress.evaluated_step = done
        self._update_best({**values, **scored}, counted)
        self._callbacks.on_evaluation(done, scored)

    def _update_best(self, values: Mapping[str, float], counted: bool) -> None:
        """Update the best metric; save a new best checkpoint if the run keeps one. values: metric -> value."""
        config = self.experiment.config
        value = values.get(monitor_of(config).metric)
        if value is None:
            return
        before, done = self.progress.metric, self.progress.done
        self.progress.metric = before.updated(config, done, value, counted=counted)
        if keeps_best(config) and self.progress.metric.best_step == done != before.best_step:
            self._states.save(self.progress)

    def _stop_if_requested(self) -> None:
        if self._stop.signum is None:
            return
        strategy = self.experiment.config.parallelism
        stopped = f"stopped after step {self.progress.done} of {self.experiment.total_steps}"
        advice = f"continue with: runner resume={shlex.quote(str(self._directory.path))}"
        if strategy.replayed is not None and strategy.race is not None and strategy.race.decisions is None:
            advice = f"a run with parallelism.replay={strategy.replayed} cannot be resumed; start a new run"
        elif not self.experiment.runs_in_virtual_time:
            self._states.save(self.progress)
            self._states.saver.finish()
        elif self.progress.saved_step != self.progress.done:
            # An additional checkpoint would change the order of events, compared with an uninterrupted run.
            stopped += (
                ", without a checkpoint, because a checkpoint changes the order of events in virtual time; the updates "
                "since the last checkpoint are repeated (checkpoint.every_steps)"
            )
        raise Interrupted(self._stop.signum, f"{stopped}; {advice}")
