"""Where a run begins: at its own newest checkpoint, with weights of another, or with initial values alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoint import Checkpoint, load, newest
from runner.engine.run.session import Session
from runner.errors import CheckpointError
from runner.records.run_directory import RunDirectory
from runner.training.experiment import Experiment
from runner.training.initial_weights import InitialWeights, initial_weights

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """checkpoint: that the run continues from. weights: that a run without one begins with, before its first step."""

    checkpoint: Checkpoint | None = None
    weights: InitialWeights | None = None

    @property
    def step(self) -> int:
        """Updates that were made before."""
        return 0 if self.checkpoint is None else self.checkpoint.step

    @property
    def progress(self) -> dict[str, float]:
        """What the training loop goes on from."""
        return {} if self.checkpoint is None else self.checkpoint.manifest.meta.progress


def fresh_start(experiment: Experiment) -> Start:
    """Where a new run begins. Raises CheckpointError where ``init_from`` names nothing that can be used."""
    return Start(weights=initial_weights(experiment.config))


def continued_start(experiment: Experiment, directory: RunDirectory) -> Start:
    """Where a run goes on: at its newest usable checkpoint, or at its beginning when it has none.

    Raises CheckpointError for a checkpoint of another run, or one that the program has no use for.
    """
    path = newest(directory.checkpoints)
    if path is None:
        return fresh_start(experiment)
    expected = {name: (spec.shape, spec.dtype) for name, spec in experiment.program.variables.items()}
    found = load(path, expected)
    if found.manifest.meta.run_id != directory.run_id:
        raise CheckpointError(
            f"{path} belongs to run {found.manifest.meta.run_id}, "
            f"expected {directory.run_id}, the run of this directory"
        )
    return Start(found)


def tell_continued(start: Start, experiment: Experiment, directory: RunDirectory) -> None:
    """Warn of a run that does not go on where it was left, for want of a checkpoint or of updates to make."""
    if start.checkpoint is None:
        log.warning("no checkpoint in %s: beginning at step 0", directory.checkpoints)
    elif start.step >= experiment.total_steps:
        log.warning(
            "the run is at step %d of %d: nothing is left to train; a larger train.steps or train.epochs goes on",
            start.step,
            experiment.total_steps,
        )


def begin(session: Session, start: Start) -> None:
    """Give every variable its value, in every replica."""
    if start.checkpoint is not None:
        _restore(session, start.checkpoint.variables)
        return
    session.run("init")
    if start.weights is not None:
        initial = {name: value.copy() for name, value in session.run("save").items()}
        _restore(session, {**initial, **start.weights.values})


def _restore(session: Session, variables: Mapping[str, NDArray[Any]]) -> None:
    session.run("restore", feeds={name: np.asarray(value, order="C") for name, value in variables.items()})
