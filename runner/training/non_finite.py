"""Divergence of a finite training loss, and the origin of a loss that is not finite."""

import dataclasses
import logging
from collections.abc import Sequence

from runner.config.schema import for_one_process
from runner.engine.run.session import Session
from runner.engine.run.step_driver import bind
from runner.errors import DivergenceError, NonFiniteLossError, NumericError, RunnerError
from runner.records.run_directory import RunDirectory
from runner.training.build import build, open_session
from runner.training.experiment import Experiment, train_step
from runner.training.saving import continued_start

FACTOR = 10
LAST = 3

log = logging.getLogger(__name__)


def divergence(losses: Sequence[float], expected: float, advice: str) -> DivergenceError | None:
    """Return an error if the training loss of a run diverged, else None.

    A run diverged if the last :data:`LAST` logged losses are all above :data:`FACTOR` times a reference: the loss of
    the first step or a loss that an untrained network can have, whichever is larger. Several losses are required,
    because the loss of one small batch varies. losses: all logged training losses; the first one belongs to the initial
    weights and never counts as one of the last losses. expected: see :meth:`~runner.tasks.base.Task.expected_loss`.
    """
    last = losses[1:][-LAST:]
    if not last:
        return None
    first = losses[0]
    limit = FACTOR * max(first, expected)
    if min(last) <= limit:
        return None
    return DivergenceError(
        f"the training loss diverged: the last {len(last)} logged values are {min(last):.4g} or more; expected at most "
        f"{limit:.4g}, {FACTOR} times the larger of the first loss, {first:.4g}, and the loss of an untrained "
        f"network, {expected:.4g}; {advice}"
    )


def name_the_node(error: NonFiniteLossError, experiment: Experiment, directory: RunDirectory) -> None:
    """Raise NumericError with the node that first produced a value that is not finite; return if none is found.

    The function repeats the steps since the last checkpoint and checks the outputs of every node. If the steps cannot
    be repeated, the error is logged and not raised.
    """
    where = "Origin"
    try:
        start = continued_start(experiment, directory)
        first_step = start.step
        log.error("%s; repeating steps %d to %d to find the node that failed", error, first_step, error.step)
        again = repeated_experiment(experiment, directory, first_step)
        if again is None:
            log.warning(
                "the order of asynchronous workers cannot be replayed from step %d on: the steps are repeated in "
                "another order, so the node that is found can differ from the node that failed",
                first_step,
            )
            where = "Possible origin, found with another order of the workers"
        with open_session(again or experiment, directory, check_finite=True) as session:
            start.restore(session)
            replay(session, again or experiment, first_step, error.step)
    except NumericError as origin:
        raise NumericError(f"{error}. {where}: {origin}") from origin
    except RunnerError as other:
        log.error("the node that failed was not found: %s", other)


def replay(session: Session, experiment: Experiment, first_step: int, last_step: int) -> None:
    """Repeat updates ``first_step`` to ``last_step``; wait for all clients where the run evaluated."""
    step_driver = bind(experiment.program.step_driver, session)
    for step in range(first_step, last_step + 1):
        train_step(step_driver, experiment, step)
        if (step + 1) % experiment.eval_every == 0:
            step_driver.synchronize()
    step_driver.synchronize()


def repeated_experiment(experiment: Experiment, directory: RunDirectory, first_step: int) -> Experiment | None:
    """Return the experiment that repeats the steps from ``first_step`` on, in the recorded order of clients.

    Returns None if the values depend on the order in which clients (see ``Client`` in ``program``) end, and this order
    cannot be replayed: a recorded order can be replayed only from step 0. In virtual time, the order after a checkpoint
    does not depend on earlier steps, so no record is needed.
    """
    config = experiment.config
    race = config.parallelism.race
    if race is None:
        return experiment
    if race.decisions is not None:
        record = directory.decisions_jsonl(race.decisions)
        if not record.exists():
            return experiment
        return build(dataclasses.replace(config, parallelism=config.parallelism.replaying(str(record))))
    if first_step or not directory.endings_jsonl.exists():
        return experiment if experiment.runs_in_virtual_time else None
    strategy = config.parallelism.replaying(str(directory.endings_jsonl))
    # The recorded order includes the effects of the emulated links; the repetition in one process has no links.
    return build(dataclasses.replace(config, parallelism=strategy, cluster=for_one_process(config.cluster)))
