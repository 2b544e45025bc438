"""The training loop: steps, evaluations, checkpoints, and a clean end however it comes."""

from __future__ import annotations

import logging
import math
import shlex
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from runner.checkpoint import BEST_STEP, CheckpointMeta
from runner.checkpoint import save as save_checkpoint
from runner.cleanup import at_the_end
from runner.config.monitor import keeps_best, monitor_of
from runner.config.outcome import outcome_hash
from runner.engine.conductor import Conductor
from runner.engine.session import Session, scalar
from runner.engine.tensor import state_dtype
from runner.errors import Interrupted, NonFiniteLossError
from runner.records.decisions import Decisions
from runner.records.endings import NotingClients, Origin
from runner.records.record import Record
from runner.records.run_directory import RunDirectory
from runner.signals import StopRequest
from runner.tracing.window import TraceFiles, TraceWindow, recorded_steps
from runner.training.display import Display
from runner.training.evaluation import TEST, Scores, evaluate
from runner.training.experiment import Experiment
from runner.training.standing import Standing

log = logging.getLogger(__name__)


@dataclass
class Progress:
    """What a run has done so far in this process.

    done: updates applied since the run began, earlier processes included. step_seconds: wall time of each step of
    this process. loss: of the newest update of this process. saved_step: newest step with a checkpoint of this
    process. scores: of the test split, newest. standing: of the monitored metric, earlier processes included. stopped:
    why the run ended early, "" where it did not.
    """

    first_step: int
    done: int
    step_seconds: list[float] = field(default_factory=list)
    standing: Standing = field(default_factory=Standing)
    loss: float | None = None
    saved_step: int | None = None
    scores: Scores | None = None
    stopped: str = ""


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
        self.progress = Progress(first_step, first_step, standing=_standing_at_start(experiment, meta.progress))
        self._monitor = monitor_of(experiment.config)
        self._keeps_best = keeps_best(experiment.config)
        self._session = session
        outcome = outcome_hash(experiment.config)
        origin = Origin(outcome, first_step, tuple(device.name for device in experiment.cluster.devices))
        self._noting: NotingClients | None = None
        if experiment.program.repeated_by_endings:
            self._noting = NotingClients(session, directory.endings_jsonl, origin)
        self._conductor = experiment.program.conduct(self._noting or session)
        self._decisions = Decisions(directory.path, first_step, outcome)
        self._directory = directory
        self._record = record
        self._display = display
        self._stop = stop
        self._meta = meta
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
        return self._conductor.record()

    def variables(self) -> dict[str, NDArray[Any]]:
        """Every variable, whole, by unsharded name."""
        self._conductor.settle()
        return self._session.run("save")

    def _write_decisions(self) -> None:
        for path in self._decisions.write(self._conductor.decisions()):
            self._record.artifact(path)
        if self._directory.endings_jsonl.exists():
            self._record.artifact(self._directory.endings_jsonl)

    def _train_to(self, total: int) -> None:
        while self.progress.done < total and not self._is_out_of_patience():
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
            self._tell_early_end(total)

    def _step(self) -> None:
        step = self.progress.done
        config = self.experiment.config
        rate = self.experiment.learning_rate(step)
        self._trace.before(step)
        started = time.perf_counter()
        answer = train_step(self._conductor, self.experiment, step)
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
                    **self._conductor.metrics(),
                },
            )

    def _refuse_loss(self, step: int, loss: float, rate: float) -> NoReturn:
        # What is under way ends first: without it the record of endings has gaps, and the run cannot be repeated.
        with at_the_end("letting what is under way end", lambda error: self._conductor.settle()):
            raise NonFiniteLossError(
                step,
                f"the loss of step {step} is {loss}, with learning rate {rate:g}: {self._advice}",
            )

    @property
    def _advice(self) -> str:
        config: Any = self.experiment.config
        return str(config.optimizer.against_divergence)

    def _logs_now(self) -> bool:
        """Every so many steps, and at both ends, so that a curve begins and ends where the run does."""
        done = self.progress.done
        return done % self.experiment.config.train.log_every == 0 or done in (1, self.experiment.total_steps)

    def _evaluate(self, *, counted: bool) -> None:
        """Score every split. counted: it is an evaluation of the schedule, of which patience counts the idle ones."""
        self._conductor.settle()
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
        standing = before.seen(self._monitor, done, value)
        train = self.experiment.config.train
        if train.patience is None:
            standing = standing.uncounted()
        elif counted:
            standing = standing.counted(self._monitor, value, train.min_delta)
        self.progress.standing = standing
        if self._keeps_best and standing.best_step == done != before.best_step:
            self._save()

    def _is_out_of_patience(self) -> bool:
        patience = self.experiment.config.train.patience
        return patience is not None and self.progress.standing.waited >= patience

    def _tell_early_end(self, total: int) -> None:
        train, standing = self.experiment.config.train, self.progress.standing
        by = f" by more than {train.min_delta:g}" if train.min_delta else ""
        better = "a number" if standing.reference is None else f"better{by} than {standing.reference:.4f}"
        self.progress.stopped = (
            f"after step {self.progress.done} of {total}: {self._monitor.metric} was not {better} in "
            f"{standing.waited} evaluations (train.patience={train.patience})"
        )
        self._display.message(f"stopped early {self.progress.stopped}")
        log.info("stopped early %s", self.progress.stopped)

    def _meta_now(self) -> CheckpointMeta:
        """What a checkpoint of this moment says of the run."""
        done, standing = self.progress.done, self.progress.standing
        progress = standing.to_progress()
        if self._keeps_best and standing.best_step is not None:
            progress[BEST_STEP] = standing.best_step
        return replace(self._meta, examples=done * self.experiment.config.train.batch_size, progress=progress)

    def _save_if_due(self) -> None:
        every = self.experiment.config.checkpoint.every_steps
        if every is not None and self.progress.done % every == 0:
            self._save()

    def _save(self) -> None:
        if self.progress.saved_step == self.progress.done:
            return
        variables = self.variables()
        _refuse_non_finite(variables, self.progress.done, self._advice)
        # First the metrics and what was decided: no checkpoint may outlive what led to it.
        self._record.sync()
        self._decisions.write(self._conductor.decisions())
        path = save_checkpoint(
            self._directory.checkpoints,
            step=self.progress.done,
            variables=variables,
            meta=self._meta_now(),
            keep=self.experiment.config.checkpoint.keep,
        )
        self.progress.saved_step = self.progress.done
        log.info("checkpoint %s", path)

    def _stop_if_asked(self) -> None:
        if self._stop.signum is not None:
            self._save()
            raise Interrupted(
                self._stop.signum,
                f"stopped after step {self.progress.done} of {self.experiment.total_steps}; "
                f"continue with: runner resume={shlex.quote(str(self._directory.path))}",
            )


def _standing_at_start(experiment: Experiment, progress: Mapping[str, float]) -> Standing:
    """How the metric stands at the checkpoint with this progress; anew where the best so far was not kept and is to be.

    Else a best would be named of which there is no checkpoint.
    """
    if keeps_best(experiment.config) and BEST_STEP not in progress:
        return Standing()
    return Standing.from_progress(progress)


def _traced_steps(experiment: Experiment, first_step: int) -> range:
    """The steps whose timeline is recorded; none unless asked for."""
    config = experiment.config
    if not config.trace:
        return range(0)
    return recorded_steps(first_step, experiment.total_steps, config.trace_skip, config.trace_steps)


def _refuse_non_finite(variables: Mapping[str, NDArray[Any]], done: int, advice: str) -> None:
    """Raise NonFiniteLossError for a variable that is not finite: a fast ReLU can hide it from the loss."""
    for name, value in variables.items():
        if not np.isfinite(value).all():
            raise NonFiniteLossError(
                done - 1,
                f"variable {name!r} is not finite after step {done - 1}, so no checkpoint is written: {advice}",
            )


def train_step(conductor: Conductor, experiment: Experiment, step: int) -> Mapping[str, NDArray[Any]]:
    """Run update number ``step``; return its loss and accuracy."""
    feeds = {
        "step": scalar(step, "int64"),
        "learning_rate": scalar(experiment.learning_rate(step), state_dtype(experiment.config.precision)),
    }
    return conductor.update(step, feeds)


def replay(session: Session, experiment: Experiment, first_step: int, last_step: int) -> None:
    """Run updates first_step..last_step again, for a session that checks every value to find the faulty one.

    What is under way comes to its end where it did in the run: when that evaluated, and at last.
    """
    conductor = experiment.program.conduct(session)
    for step in range(first_step, last_step + 1):
        train_step(conductor, experiment, step)
        if (step + 1) % experiment.eval_every == 0:
            conductor.settle()
    conductor.settle()
