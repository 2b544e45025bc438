"""Callbacks: the user's functions that are called during a run that was started from Python."""

from collections.abc import Mapping
from pathlib import Path


class Callback:
    """The base class of callbacks; override the methods that are of interest.

    The methods are called in the process that started the run, between two steps, so the next step waits for them.
    An exception ends the run with status "failed"; a checkpoint that was written before is kept.
    """

    def on_step(self, step: int, loss: float) -> None:
        """Act after an update. step: number of updates so far. loss: of the batch of this update."""

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Act after an evaluation. metrics: such as "test/accuracy" -> value, for all splits."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Act after a checkpoint was written. path: its directory ``step-N``."""
