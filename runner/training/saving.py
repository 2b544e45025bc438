"""The start of a run, its progress, and its checkpoints."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoint import BEST_STEP, Checkpoint, CheckpointMeta, load, newest
from runner.checkpoint import save as save_checkpoint
from runner.config.monitor import keeps_best
from runner.engine.compile.program import SAVE
from runner.engine.run.session import Session
from runner.errors import CheckpointError, NonFiniteLossError
from runner.optimizers.averages import with_averages
from runner.records.record import Record
from runner.records.run_directory import RunDirectory
from runner.training.evaluation import BestMetric, Scores
from runner.training.experiment import Experiment
from runner.training.initial_weights import InitialWeights, initial_weights

log = logging.getLogger(__name__)

SECONDS, COMPUTED = "seconds", "computed"
"""Keys of :attr:`Progress.seconds` and :attr:`Progress.computed` in the progress that a checkpoint stores."""


@dataclass(frozen=True)
class Start:
    """The start of a run: its newest checkpoint, or step 0.

    checkpoint: the checkpoint from which the run continues. weights: the initial weights from another run, for a run
    without a checkpoint.
    """

    checkpoint: Checkpoint | None = None
    weights: InitialWeights | None = None

    @property
    def step(self) -> int:
        """The number of updates before this start."""
        return 0 if self.checkpoint is None else self.checkpoint.step

    @property
    def progress(self) -> dict[str, float]:
        """The progress that the checkpoint stores; empty without a checkpoint."""
        return {} if self.checkpoint is None else self.checkpoint.manifest.meta.progress

    def restore(self, session: Session) -> None:
        """Set every variable of a session, in every replica, to its value at this start."""
        if self.checkpoint is not None:
            restore(session, self.checkpoint.variables)
            return
        session.run("init")
        if self.weights is not None:
            initial = {name: value.copy() for name, value in session.run(SAVE).items()}
            restore(session, {**initial, **with_averages(self.weights.values, initial)})


def continued_start(experiment: Experiment, directory: RunDirectory) -> Start:
    """Return the newest usable checkpoint of a run as its start, or the start of a new run if there is none.

    Raises CheckpointError if the checkpoint belongs to another run or does not fit the program.
    """
    path = newest(directory.checkpoints)
    if path is None:
        return Start(weights=initial_weights(experiment.config))
    expected = {name: (spec.shape, spec.dtype) for name, spec in experiment.program.variables.items()}
    found = load(path, expected)
    if found.manifest.meta.run_id != directory.run_id:
        raise CheckpointError(
            f"{path} belongs to run {found.manifest.meta.run_id}, "
            f"expected {directory.run_id}, the run of this directory"
        )
    return Start(found)


def restore(session: Session, variables: Mapping[str, NDArray[Any]]) -> None:
    """Set every variable of a session, in every replica. variables: unsharded name -> value."""
    session.run("restore", feeds={name: np.asarray(value, order="C") for name, value in variables.items()})


@dataclass
class Progress:
    """The progress of a run.

    done: number of updates since the run began, in all processes. step_seconds: wall time of each step of this process.
    seconds, computed: wall time of all updates, in all processes, and the number of examples that they computed; a line
    search computes an example several times. metric: the monitored metric, including evaluations of earlier processes.
    loss: the loss of this process's newest update. saved_step, evaluated_step: the newest steps that this process saved
    and evaluated. scores: the newest scores of the test split. stopped: the reason why the run ended early, "" if it
    did not.
    """

    done: int
    step_seconds: list[float] = field(default_factory=list)
    seconds: float = 0.0
    computed: int = 0
    metric: BestMetric = field(default_factory=BestMetric)
    loss: float | None = None
    saved_step: int | None = None
    evaluated_step: int | None = None
    scores: Scores | None = None
    stopped: str = ""


def prepared_checkpoint(
    experiment: Experiment,
    directory: RunDirectory,
    record: Record,
    progress: Progress,
    variables: Mapping[str, NDArray[Any]],
    meta: CheckpointMeta,
) -> Callable[[], Path]:
    """Return a function that flushes the metrics, writes a checkpoint of step ``progress.done``, and returns its path.

    The function may run in another thread, while ``progress`` changes; ``variables`` must not change.
    meta: the entries that are the same in all manifests of the run. Raises NonFiniteLossError if a variable is not
    finite; after the last update, no later loss would reveal this.
    """
    config, done = experiment.config, progress.done
    for name, value in variables.items():
        if not np.isfinite(value).all():
            fault = f"variable {name!r} is not finite after step {done - 1}, so no checkpoint is written"
            raise NonFiniteLossError(done - 1, f"{fault}: {experiment.advice_on_divergence}")
    stored = {**progress.metric.to_progress(), SECONDS: progress.seconds, COMPUTED: progress.computed}
    if keeps_best(config) and progress.metric.best_step is not None:
        stored[BEST_STEP] = progress.metric.best_step
    of_this_step = replace(meta, examples=done * config.train.batch_size, progress=stored)

    def write() -> Path:
        record.sync()
        folder, keep = directory.checkpoints, config.checkpoint.keep
        path = save_checkpoint(folder, step=done, variables=variables, meta=of_this_step, keep=keep)
        log.info("checkpoint %s", path)
        return path

    return write
