"""How far a run has come."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.training.evaluation import Scores
from runner.training.standing import Standing


@dataclass
class Progress:
    """What a run has done so far in this process.

    done: updates applied since the run began, earlier processes included. step_seconds: wall time of each step of
    this process. loss: of the newest update of this process. saved_step: newest step with a checkpoint of this
    process. scores: of the test split, newest. standing: of the monitored metric, earlier processes included. stopped:
    why the run ended early, "" where it did not.
    """

    first_step: int
    done: int
    step_seconds: list[float] = field(default_factory=list)
    standing: Standing = field(default_factory=Standing)
    loss: float | None = None
    saved_step: int | None = None
    scores: Scores | None = None
    stopped: str = ""
