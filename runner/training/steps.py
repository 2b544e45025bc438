"""Updates of a run, one after the other: for the first time, and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from runner.engine.graph.tensor import state_dtype
from runner.engine.run.session import Session, scalar
from runner.engine.run.step_driver import StepDriver, bind
from runner.training.experiment import Experiment


def train_step(
    step_driver: StepDriver, experiment: Experiment, step: int, learning_rate: float
) -> Mapping[str, NDArray[Any]]:
    """Run update number ``step`` with a learning rate; return its loss and accuracy."""
    return step_driver.update(step, scalar(learning_rate, state_dtype(experiment.config.precision)))


def replay(session: Session, experiment: Experiment, first_step: int, last_step: int) -> None:
    """Run updates first_step..last_step again, for a session that checks every value to find the faulty one.

    What is under way comes to its end where it did in the run: when that evaluated, and at last.
    """
    step_driver = bind(experiment.program.step_driver, session)
    for step in range(first_step, last_step + 1):
        train_step(step_driver, experiment, step, experiment.learning_rate(step))
        if (step + 1) % experiment.eval_every == 0:
            step_driver.synchronize()
    step_driver.synchronize()
