"""Callbacks: objects of the user whose methods are called during a run."""

from collections.abc import Mapping
from pathlib import Path


class StopTraining(Exception):
    """The exception with which a callback ends its run early. The run does not count as failed.

    Example: ``raise runner.StopTraining("the loss is low enough")``.
    """


class Callback:
    """The base class of callbacks; override the methods that you need.

    The methods are called in the process that started the run, between two steps, so the next step waits for them.

    If a method raises :class:`StopTraining`, the current step becomes the last step, is evaluated and saved, and the
    run ends with status "finished" and the reason in ``summary.stopped``. If ``on_checkpoint`` raises StopTraining
    after a step without an evaluation, the next step is the last step, because an evaluation precedes the checkpoint of
    its step. Any other exception ends the run with status "failed"; a checkpoint that was written before is kept.

    If the run recovers from a lost worker, the methods are not called again for the steps that the run repeats.

    Each start of a run, also a resume, uses a new copy of each callback of the configuration, in the state that
    ``__init__`` or ``__post_init__`` sets.
    """

    def on_step(self, step: int, loss: float) -> None:
        """Act after an update. step: number of updates so far. loss: of the batch of this update."""

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Act after an evaluation. metrics: name, such as "test/accuracy", -> value, for all splits."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Act after a checkpoint was written. path: its directory ``step-N``."""


CALLBACKS: dict[str, type[Callback]] = {}
"""Callbacks of plugins by their names in the configuration: dataclasses, whose fields are the settings."""
