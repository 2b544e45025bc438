"""The checkpoints that a run leaves, and what they say of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoint import BEST_STEP, CheckpointMeta
from runner.checkpoint import save as save_checkpoint
from runner.config.monitor import keeps_best
from runner.errors import NonFiniteLossError
from runner.records.decisions import Decisions
from runner.records.record import Record
from runner.records.run_directory import RunDirectory
from runner.training.experiment import Experiment
from runner.training.progress import Progress

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Saver:
    """Writes the checkpoints of a run. meta: of all of them, but for what changes as the run goes on."""

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
        """Write a checkpoint of this moment and note it in ``progress``. Raises NonFiniteLossError for infinite values.

        decided: what was decided so far and no configuration says, by the name of its file.
        """
        _refuse_non_finite(variables, progress.done, against_divergence(self.experiment))
        # First the metrics and what was decided: no checkpoint may outlive what led to it.
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
        """What a checkpoint of this moment says of the run."""
        config, standing = self.experiment.config, progress.standing
        said = standing.to_progress()
        if keeps_best(config) and standing.best_step is not None:
            said[BEST_STEP] = standing.best_step
        return replace(self.meta, examples=progress.done * config.train.batch_size, progress=said)


def against_divergence(experiment: Experiment) -> str:
    """What the optimizer advises where values cease to be finite."""
    config: Any = experiment.config
    return str(config.optimizer.against_divergence)


def _refuse_non_finite(variables: Mapping[str, NDArray[Any]], done: int, advice: str) -> None:
    """Raise NonFiniteLossError for a variable that is not finite: the last update comes after the last loss."""
    for name, value in variables.items():
        if not np.isfinite(value).all():
            raise NonFiniteLossError(
                done - 1,
                f"variable {name!r} is not finite after step {done - 1}, so no checkpoint is written: {advice}",
            )
