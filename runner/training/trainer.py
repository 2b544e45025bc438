"""The training loop: steps, evaluations, checkpoints, and a clean end however it comes."""

from __future__ import annotations

import logging
import math
import shlex
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NoReturn

from numpy.typing import NDArray

from runner.checkpoint import CheckpointMeta
from runner.config.monitor import keeps_best, monitor_of
from runner.config.outcome import outcome_hash
from runner.engine.run.session import Session
from runner.engine.run.step_driver import bind
from runner.errors import Interrupted, NonFiniteLossError
from runner.records.decisions import Decisions
from runner.records.endings import NotingClients, Origin
from runner.records.record import Record
from runner.records.run_directory import RunDirectory
from runner.system.cleanup import at_the_end
from runner.system.signals import StopRequest
from runner.tracing.window import TraceFiles, TraceWindow, recorded_steps
from runner.training.display import Display
from runner.training.evaluation import TEST, evaluate
from runner.training.experiment import Experiment
from runner.training.judging import early_end, is_out_of_patience, judged, standing_at_start
from runner.training.progress import Progress
from runner.training.saving import Saver, against_divergence
from runner.training.steps import train_step

log = logging.getLogger(__name__)


class Trainer:
    """Trains one experiment on one session, from wherever its variables stand.

    Raises NonFiniteLossError when the loss is not finite and Interrupted, after a checkpoint, when asked to stop.
    """

    def __init__(
        self,
        experiment: Experiment,
        session: Session,
        directory: RunDirectory,
        record: Record,
        display: Display,
        stop: StopRequest,
        *,
        meta: CheckpointMeta,
        first_step: int = 0,
    ) -> None:
        """meta: of the checkpoints to come; its progress is that of the checkpoint the run continues from."""
        self.experiment = experiment
        self.progress = Progress(first_step, first_step, standing=standing_at_start(experiment, meta.progress))
        self._monitor = monitor_of(experiment.config)
        self._keeps_best = keeps_best(experiment.config)
        self._session = session
        outcome = outcome_hash(experiment.config)
        origin = Origin(outcome, first_step, tuple(device.name for device in experiment.cluster.devices))
        self._noting: NotingClients | None = None
        race = experiment.config.parallelism.race
        if race is not None and race.decisions is None:
            self._noting = NotingClients(session, directory.endings_jsonl, origin)
        self._step_driver = bind(experiment.program.step_driver, self._noting or session)
        self._decisions = Decisions(directory.path, first_step, outcome)
        self._saver = Saver(experiment, directory, record, self._decisions, meta)
        self._directory = directory
        self._record = record
        self._display = display
        self._stop = stop
        files = TraceFiles(directory.trace_json, directory.trace_summary_json)
        clients = [client.name for client in experiment.program.training]
        self._trace = TraceWindow(session, clients, _traced_steps(experiment, first_step), files, record.artifact)

    def run(self) -> Progress:
        """Train to the last step, evaluate, save; return what was done."""
        total = self.experiment.total_steps
        self._display.start(self.progress.done, total)
        with (
            at_the_end("closing the display", lambda error: self._display.close()),
            at_the_end("writing what was decided", lambda error: self._write_decisions()),
            at_the_end("writing the timeline", self._trace.finish),
            self._noting or nullcontext(),
        ):
            self._train_to(total)
        return self.progress

    def decided(self) -> Mapping[str, Any]:
        """What was decided so far and no configuration says; empty where there is nothing."""
        return self._step_driver.record()

    def variables(self) -> dict[str, NDArray[Any]]:
        """Return every variable, whole, by unsharded name, for a checkpoint or at the end of the run."""
        self._step_driver.begin_again()
        return self._session.run("save")

    def _write_decisions(self) -> None:
        for path in self._decisions.write(self._step_driver.decisions()):
            self._record.artifact(path)
        if self._directory.endings_jsonl.exists():
            self._record.artifact(self._directory.endings_jsonl)

    def _train_to(self, total: int) -> None:
        while self.progress.done < total and not is_out_of_patience(self.experiment, self.progress.standing):
            self._step()
            due = self.progress.done % self.experiment.eval_every == 0
            # Before any checkpoint of this step: that one must know how the metric stands.
            if due or self.progress.done == total:
                self._evaluate(counted=due)
            self._save_if_due()
            self._stop_if_asked()
        if self.progress.scores is None:
            self._evaluate(counted=False)
        self._save()
        if self.progress.done < total:
            self._tell_early_end()

    def _step(self) -> None:
        step = self.progress.done
        config = self.experiment.config
        rate = self.experiment.learning_rate(step)
        self._trace.before(step)
        started = time.perf_counter()
        answer = train_step(self._step_driver, self.experiment, step, rate)
        seconds = time.perf_counter() - started
        self._trace.after(step)
        loss = float(answer["loss"])
        if not math.isfinite(loss):
            self._refuse_loss(step, loss, rate)
        self.progress.done = step + 1
        self.progress.loss = loss
        self.progress.step_seconds.append(seconds)
        self._display.step(self.progress.done, loss, config.train.batch_size / seconds)
        if self._logs_now():
            since_last = self.progress.step_seconds[-config.train.log_every :]
            mean_s = sum(since_last) / len(since_last)
            self._record.metrics(
                self.progress.done,
                {
                    "train/loss": loss,
                    "train/accuracy": float(answer["accuracy"]),
                    "train/learning_rate": rate,
                    "perf/step_time_s": mean_s,
                    "perf/examples_per_s": config.train.batch_size / mean_s,
                    **self._step_driver.metrics(),
                },
            )

    def _refuse_loss(self, step: int, loss: float, rate: float) -> NoReturn:
        # What is under way ends first: without it the record of endings has gaps, and the run cannot be repeated.
        with at_the_end("letting what is under way end", lambda error: self._step_driver.synchronize()):
            advice = against_divergence(self.experiment)
            raise NonFiniteLossError(step, f"the loss of step {step} is {loss}, with learning rate {rate:g}: {advice}")

    def _logs_now(self) -> bool:
        """Every so many steps, and at both ends, so that a curve begins and ends where the run does."""
        done = self.progress.done
        return done % self.experiment.config.train.log_every == 0 or done in (1, self.experiment.total_steps)

    def _evaluate(self, *, counted: bool) -> None:
        """Score every split. counted: it is an evaluation of the schedule, of which patience counts the idle ones."""
        self._step_driver.synchronize()
        done, classes = self.progress.done, self.experiment.facts.classes
        values = {} if self.progress.loss is None else {"train/loss": self.progress.loss}
        scored: dict[str, float] = {}
        for split, batches in self.experiment.eval_batches.items():
            scores = evaluate(self._session, batches=batches, classes=classes, split=split)
            scored |= {f"{split}/loss": scores.loss, f"{split}/accuracy": scores.accuracy}
            loss, accuracy = f"{split} loss {scores.loss:.4f}", f"{split} accuracy {scores.accuracy:.2%}"
            self._display.message(f"step {done}: {loss}, {accuracy}")
            if split == TEST:
                self.progress.scores = scores
        self._record.metrics(done, {**scored, "train/epoch": done / self.experiment.steps_per_epoch})
        self._judge({**values, **scored}, counted)

    def _judge(self, values: Mapping[str, float], counted: bool) -> None:
        """Let the monitored metric have its say, and keep what is best. values: of this moment, by metric."""
        value = values.get(self._monitor.metric)
        if value is None:
            return
        before, done = self.progress.standing, self.progress.done
        standing = self.progress.standing = judged(self.experiment, before, done, value, counted=counted)
        if self._keeps_best and standing.best_step == done != before.best_step:
            self._save()

    def _tell_early_end(self) -> None:
        self.progress.stopped = early_end(self.experiment, self.progress)
        self._display.message(f"stopped early {self.progress.stopped}")
        log.info("stopped early %s", self.progress.stopped)

    def _save_if_due(self) -> None:
        every = self.experiment.config.checkpoint.every_steps
        if every is not None and self.progress.done % every == 0:
            self._save()

    def _save(self) -> None:
        if self.progress.saved_step == self.progress.done:
            return
        self._saver.save(self.progress, self.variables(), self._step_driver.decisions())

    def _stop_if_asked(self) -> None:
        if self._stop.signum is None:
            return
        strategy = self.experiment.config.parallelism
        stopped = f"stopped after step {self.progress.done} of {self.experiment.total_steps}"
        advice = f"continue with: runner resume={shlex.quote(str(self._directory.path))}"
        if strategy.replayed is not None and strategy.race is not None and strategy.race.decisions is None:
            advice = f"start it again: a run with parallelism.replay={strategy.replayed} cannot be resumed"
        elif not self.experiment.runs_in_virtual_time:
            self._save()
        elif self.progress.saved_step != self.progress.done:
            # The order begins again at a checkpoint, and the undisturbed run has no checkpoint here.
            stopped += (
                ", without a checkpoint, because a checkpoint changes the order of virtual time; the updates since the "
                "last checkpoint are repeated (checkpoint.every_steps)"
            )
        raise Interrupted(self._stop.signum, f"{stopped}; {advice}")


def _traced_steps(experiment: Experiment, first_step: int) -> range:
    """The steps whose timeline is recorded; none unless asked for."""
    config = experiment.config
    if not config.trace:
        return range(0)
    return recorded_steps(first_step, experiment.total_steps, config.trace_skip, config.trace_steps)
