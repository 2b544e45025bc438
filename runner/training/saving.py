"""Where a run starts, how far it has come, and the checkpoints that it writes."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoint import BEST_STEP, Checkpoint, CheckpointMeta, load, newest
from runner.checkpoint import save as save_checkpoint
from runner.config.monitor import keeps_best
from runner.engine.run.session import Session
from runner.errors import CheckpointError, NonFiniteLossError
from runner.records.decisions import Decisions
from runner.records.record import Record
from runner.records.run_directory import RunDirectory
from runner.training.evaluation import BestMetric, Scores
from runner.training.experiment import Experiment
from runner.training.initial_weights import InitialWeights, initial_weights

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """Where a run starts: at its newest checkpoint, or at step 0.

    checkpoint: the checkpoint from which the run continues. weights: the weights of another run with which a run
    without a checkpoint begins.
    """

    checkpoint: Checkpoint | None = None
    weights: InitialWeights | None = None

    @property
    def step(self) -> int:
        """The number of updates that were made before."""
        return 0 if self.checkpoint is None else self.checkpoint.step

    @property
    def progress(self) -> dict[str, float]:
        """The progress that the checkpoint stores."""
        return {} if self.checkpoint is None else self.checkpoint.manifest.meta.progress

    def restore(self, session: Session) -> None:
        """Set every variable of a session, in every replica."""
        if self.checkpoint is not None:
            _restore(session, self.checkpoint.variables)
            return
        session.run("init")
        if self.weights is not None:
            initial = {name: value.copy() for name, value in session.run("save").items()}
            _restore(session, {**initial, **self.weights.values})


def fresh_start(experiment: Experiment) -> Start:
    """Return the start of a new run. Raises CheckpointError if ``init_from`` names no usable checkpoint."""
    return Start(weights=initial_weights(experiment.config))


def continued_start(experiment: Experiment, directory: RunDirectory) -> Start:
    """Return the newest usable checkpoint of a run as its start, or step 0 if it has none.

    Raises CheckpointError if the checkpoint belongs to another run or does not fit the program.
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


def _restore(session: Session, variables: Mapping[str, NDArray[Any]]) -> None:
    session.run("restore", feeds={name: np.asarray(value, order="C") for name, value in variables.items()})


@dataclass
class Progress:
    """How far a run has come.

    first_step: updates before this process. done: updates since the run began, those of earlier processes included.
    step_seconds: wall time of each step of this process. metric: the monitored metric, evaluations of earlier processes
    included. loss: of the newest update of this process. saved_step: the newest step that this process saved. scores:
    the newest scores of the test split. stopped: why the run ended early, "" if it did not.
    """

    first_step: int
    done: int
    step_seconds: list[float] = field(default_factory=list)
    metric: BestMetric = field(default_factory=BestMetric)
    loss: float | None = None
    saved_step: int | None = None
    scores: Scores | None = None
    stopped: str = ""


@dataclass(frozen=True)
class Saver:
    """Writes the checkpoints of a run. meta: the entries that are the same in all of its manifests."""

    experiment: Experiment
    directory: RunDirectory
    record: Record
    decisions: Decisions
    meta: CheckpointMeta

    def save(
        self,
        progress: Progress,
        variables: Mapping[str, NDArray[Any]],
        decided: Mapping[str, Iterable[Mapping[str, Any]]],
    ) -> None:
        """Write a checkpoint after ``progress.done`` updates and store its step in ``progress``.

        decided: the decisions so far that follow from no configuration, by the name of their file. Raises
        NonFiniteLossError if a variable is not finite.
        """
        _refuse_non_finite(variables, progress.done, self.experiment.advice_on_divergence)
        # Metrics and decisions are written first, so that no checkpoint outlives the records that led to it.
        self.record.sync()
        self.decisions.write(decided)
        path = save_checkpoint(
            self.directory.checkpoints,
            step=progress.done,
            variables=variables,
            meta=self._meta(progress),
            keep=self.experiment.config.checkpoint.keep,
        )
        progress.saved_step = progress.done
        log.info("checkpoint %s", path)

    def _meta(self, progress: Progress) -> CheckpointMeta:
        config, stored = self.experiment.config, progress.metric.to_progress()
        if keeps_best(config) and progress.metric.best_step is not None:
            stored[BEST_STEP] = progress.metric.best_step
        return replace(self.meta, examples=progress.done * config.train.batch_size, progress=stored)


def _refuse_non_finite(variables: Mapping[str, NDArray[Any]], done: int, advice: str) -> None:
    """Raise NonFiniteLossError for a variable that is not finite: no loss is computed after the last update."""
    for name, value in variables.items():
        if not np.isfinite(value).all():
            raise NonFiniteLossError(
                done - 1,
                f"variable {name!r} is not finite after step {done - 1}, so no checkpoint is written: {advice}",
            )
