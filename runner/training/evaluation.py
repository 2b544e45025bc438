"""Scoring a split: mean loss, accuracy and the confusion matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.compile.program import Program
from runner.engine.run.session import scalar
from runner.engine.run.step_driver import Clients

TEST = "test"
VALIDATION = "val"
_CLIENTS = {TEST: "eval", VALIDATION: "validate"}
"""Split -> the client that scores it."""


@dataclass(frozen=True)
class Scores:
    """Result of one evaluation.

    confusion: (C, C) int64, examples of true class i that were taken for class j.
    """

    loss: float
    accuracy: float
    examples: int
    confusion: NDArray[np.int64]


def with_validation(program: Program) -> Program:
    """Give a program the client that scores the validation split: the nodes of "eval", fed with other examples."""
    scoring = program.clients[_CLIENTS[TEST]]
    inputs = tuple(replace(slot, split=VALIDATION) for slot in scoring.inputs)
    validating = replace(scoring, name=_CLIENTS[VALIDATION], inputs=inputs)
    return replace(program, clients={**program.clients, validating.name: validating})


def evaluate(clients: Clients, *, batches: int, classes: int, split: str = TEST) -> Scores:
    """Score so many evaluation batches of a split; padding does not count."""
    loss = correct = 0.0
    confusion = np.zeros((classes, classes), np.int64)
    for batch in range(batches):
        feeds = {"step": scalar(batch, "int64")}
        answer: dict[str, NDArray[Any]] = clients.run(_CLIENTS[split], step=batch, feeds=feeds)
        loss += float(answer["loss"])
        correct += float(answer["correct"])
        real = answer["mask"] > 0
        np.add.at(confusion, (answer["labels"][real], answer["predictions"][real]), 1)
    examples = int(confusion.sum())
    return Scores(loss / examples, correct / examples, examples, confusion)
