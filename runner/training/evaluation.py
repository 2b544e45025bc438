"""Scoring the test split: mean loss, accuracy and the confusion matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.session import Session, scalar


@dataclass(frozen=True)
class Scores:
    """Result of one evaluation.

    confusion: (C, C) int64, examples of true class i that were taken for class j.
    """

    loss: float
    accuracy: float
    examples: int
    confusion: NDArray[np.int64]


def evaluate(session: Session, *, batches: int, classes: int) -> Scores:
    """Run the ``eval`` client over ``batches`` evaluation batches; padding does not count."""
    loss = correct = 0.0
    confusion = np.zeros((classes, classes), np.int64)
    for batch in range(batches):
        answer: dict[str, NDArray[Any]] = session.run("eval", step=batch, feeds={"step": scalar(batch, "int64")})
        loss += float(answer["loss"])
        correct += float(answer["correct"])
        real = answer["mask"] > 0
        np.add.at(confusion, (answer["labels"][real], answer["predictions"][real]), 1)
    examples = int(confusion.sum())
    return Scores(loss / examples, correct / examples, examples, confusion)
