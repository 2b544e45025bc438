"""Evaluation: scores of a split, the best value of the monitored metric, and early stopping."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoint import BEST_STEP
from runner.config.monitor import keeps_best, monitor_of
from runner.config.schema import Config
from runner.engine.compile.program import Program
from runner.engine.graph.network import LOSS
from runner.engine.run.session import scalar
from runner.engine.run.step_driver import Clients
from runner.system.text import significant
from runner.tasks.base import Task

TEST = "test"
VALIDATION = "val"
_CLIENTS = {TEST: "eval", VALIDATION: "validate"}  # split -> the client that scores it
_PREFIX = "monitor/"


@dataclass(frozen=True)
class Scores:
    """The result of one evaluation.

    metrics: metric or "loss" -> value over all examples. confusion: (C, C) int64; confusion[i, j] is the number of
    examples of class i that were predicted as class j; None if the task predicts no classes.
    """

    metrics: Mapping[str, float]
    examples: int
    confusion: NDArray[np.int64] | None = None

    def of(self, split: str) -> dict[str, float]:
        """Return "split/metric" -> value."""
        return {f"{split}/{name}": value for name, value in self.metrics.items()}


def with_validation(program: Program) -> Program:
    """Return the program with another client, "validate", which runs the nodes of "eval" on validation examples."""
    scoring = program.clients[_CLIENTS[TEST]]
    inputs = tuple(replace(slot, split=VALIDATION) for slot in scoring.inputs)
    validating = replace(scoring, name=_CLIENTS[VALIDATION], inputs=inputs)
    return replace(program, clients={**program.clients, validating.name: validating})


def evaluate(clients: Clients, task: Task, *, batches: int, classes: int, split: str = TEST) -> Scores:
    """Score the first ``batches`` evaluation batches of a split; padding and ignored examples do not count.

    classes: the number of classes, for the confusion matrix of a task that predicts classes.
    """
    sums, weight, examples = dict.fromkeys((LOSS, *task.means), 0.0), 0.0, 0
    confusion: NDArray[np.int64] | None = None
    for batch in range(batches):
        feeds = {"step": scalar(batch, "int64")}
        answer: dict[str, NDArray[Any]] = clients.run(_CLIENTS[split], step=batch, feeds=feeds)
        for name in sums:
            sums[name] += float(answer[name])
        weight += float(answer["mask"].sum(dtype=np.float64))
        real = answer["mask"] > 0
        examples += int(real.sum())
        if {"labels", "predictions"} <= answer.keys():
            confusion = np.zeros((classes, classes), np.int64) if confusion is None else confusion
            np.add.at(confusion, (answer["labels"][real], answer["predictions"][real]), 1)
    means = {name: value / weight if weight else math.nan for name, value in sums.items()}
    return Scores(task.scores(means), examples, confusion)


@dataclass(frozen=True)
class BestMetric:
    """The best value of the monitored metric so far, and the number of evaluations without improvement.

    best, best_step: the best value and the number of updates after which it was first reached; None before the first
    value.
    reference: the value of the last improvement in a counted evaluation (see :meth:`updated`); None before the first
    improvement.
    waited: number of counted evaluations since this improvement. A value that is not finite is never an improvement.
    """

    best: float | None = None
    best_step: int | None = None
    reference: float | None = None
    waited: int = 0

    @classmethod
    def at_start(cls, config: Config, progress: Mapping[str, float]) -> "BestMetric":
        """Return the state at the start of a process. progress: from the checkpoint of a resumed run, else empty.

        If this process keeps the best checkpoint but the earlier process did not, the state is empty, because no
        checkpoint with the best value exists.
        """
        if keeps_best(config) and BEST_STEP not in progress:
            return cls()
        step = progress.get(_PREFIX + "best_step")
        return cls(
            progress.get(_PREFIX + "best"),
            None if step is None else int(step),
            progress.get(_PREFIX + "reference"),
            int(progress.get(_PREFIX + "waited", 0)),
        )

    def to_progress(self) -> dict[str, float]:
        """Return the numbers that a checkpoint stores; :meth:`at_start` reads them."""
        values = {"best": self.best, "best_step": self.best_step, "reference": self.reference, "waited": self.waited}
        return {_PREFIX + name: value for name, value in values.items() if value is not None}

    def updated(self, config: Config, done: int, value: float, *, counted: bool) -> "BestMetric":
        """Return the state for a metric that has ``value`` after ``done`` updates.

        counted: whether ``train.patience`` counts this evaluation. Without ``train.patience``, the count stays 0, so a
        resumed run that sets ``train.patience`` starts to count at 0.
        """
        monitor, train = monitor_of(config), config.train
        finite, new = math.isfinite(value), self
        if finite and (self.best is None or monitor.better(value, self.best)):
            new = replace(new, best=value, best_step=done)
        if train.patience is None:
            return replace(new, reference=None, waited=0)
        if not counted:
            return new
        margin = train.min_delta if monitor.highest else -train.min_delta
        if finite and (self.reference is None or monitor.better(value, self.reference + margin)):
            return replace(new, reference=value, waited=0)
        return replace(new, waited=self.waited + 1)

    def is_out_of_patience(self, config: Config) -> bool:
        """Return whether the run ends because ``train.patience`` evaluations in a row brought no improvement."""
        return config.train.patience is not None and self.waited >= config.train.patience

    def early_stop_text(self, config: Config) -> str:
        train = config.train
        margin = f" by more than {significant(train.min_delta)}" if train.min_delta else ""
        goal = "finite" if self.reference is None else f"better than {significant(self.reference)}{margin}"
        fault = f"{monitor_of(config).metric} was not {goal}"
        return f"{fault} in the last {self.waited} evaluations (train.patience={train.patience})"
