"""The first updates of a run: the weights after them, as a fingerprint of the program, and the time they take."""

import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

from runner.checkpoint import weights_sha256
from runner.engine.compile.program import SAVE
from runner.engine.graph.network import LOSS
from runner.engine.run.step_driver import StepDriver, bind
from runner.records.run_directory import RunDirectory
from runner.training.build import open_session
from runner.training.experiment import Experiment, train_step
from runner.training.initial_weights import initial_weights
from runner.training.saving import Start

STEPS = 3


@dataclass(frozen=True)
class FirstSteps:
    """The result of the first updates.

    weights_sha256: hash of the weights after the steps; "" if they depend on the order of concurrent processes.
    step_s: median seconds of a step; the first step counts only if there is no other. losses: of each step.
    """

    weights_sha256: str
    step_s: float
    losses: tuple[float, ...]


def timed_steps(step_driver: StepDriver, experiment: Experiment, steps: int) -> tuple[list[float], list[float]]:
    """Make updates 0 to ``steps`` - 1; return the seconds and the loss of each."""
    ends, losses = [perf_counter()], []
    for step in range(steps):
        losses.append(float(train_step(step_driver, experiment, step)[LOSS]))
        ends.append(perf_counter())
    return [end - begin for begin, end in pairwise(ends)], losses


def first_steps(experiment: Experiment, steps: int = STEPS) -> FirstSteps:
    """Make the first updates of an experiment, or all if it has fewer, as in its run; raises the errors of a run."""
    config = experiment.config
    with (
        tempfile.TemporaryDirectory() as folder,
        RunDirectory.open(Path(folder) / "run", resume=False) as directory,
        open_session(experiment, directory, check_finite=False) as session,
    ):
        Start(weights=initial_weights(config)).restore(session)
        step_driver = bind(experiment.program.step_driver, session)
        seconds, losses = timed_steps(step_driver, experiment, min(steps, experiment.total_steps))
        step_driver.begin_again()
        variables = session.run(SAVE)
    race = config.parallelism.race
    digest = weights_sha256(variables) if race is None or race.decided else ""
    return FirstSteps(digest, median(seconds[1:] or seconds), tuple(losses))
