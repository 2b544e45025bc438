"""Updates of a run, one after the other: for the first time, and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from runner.engine.conductor import Conductor
from runner.engine.session import Session, scalar
from runner.engine.tensor import state_dtype
from runner.training.experiment import Experiment


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
