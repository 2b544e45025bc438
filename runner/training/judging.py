"""What the monitored metric decides: what is best so far, and when a run ends early."""

from __future__ import annotations

from collections.abc import Mapping

from runner.checkpoint import BEST_STEP
from runner.config.monitor import keeps_best, monitor_of
from runner.training.experiment import Experiment
from runner.training.progress import Progress
from runner.training.standing import Standing


def standing_at_start(experiment: Experiment, progress: Mapping[str, float]) -> Standing:
    """How the metric stands at the checkpoint with this progress; anew where the best so far was not kept and is to be.

    Else a best would be named of which there is no checkpoint.
    """
    if keeps_best(experiment.config) and BEST_STEP not in progress:
        return Standing()
    return Standing.from_progress(progress)


def judged(experiment: Experiment, standing: Standing, done: int, value: float, *, counted: bool) -> Standing:
    """How the metric stands when it has a value after ``done`` updates.

    counted: it is an evaluation of the schedule, of which patience counts the idle ones.
    """
    monitor, train = monitor_of(experiment.config), experiment.config.train
    seen = standing.seen(monitor, done, value)
    if train.patience is None:
        return seen.uncounted()
    return seen.counted(monitor, value, train.min_delta) if counted else seen


def is_out_of_patience(experiment: Experiment, standing: Standing) -> bool:
    """Whether so many evaluations did not better the metric that the run ends."""
    patience = experiment.config.train.patience
    return patience is not None and standing.waited >= patience


def early_end(experiment: Experiment, progress: Progress) -> str:
    """When and why a run ended that had no patience left."""
    train, standing = experiment.config.train, progress.standing
    by = f" by more than {train.min_delta:g}" if train.min_delta else ""
    better = "a number" if standing.reference is None else f"better{by} than {standing.reference:.4f}"
    return (
        f"after step {progress.done} of {experiment.total_steps}: {monitor_of(experiment.config).metric} was not "
        f"{better} in {standing.waited} evaluations (train.patience={train.patience})"
    )
