"""Where a loss that is not finite began: the steps since the last checkpoint again, with every value checked."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from runner.errors import NonFiniteLossError, NumericError, RunnerError
from runner.records.run_directory import RunDirectory
from runner.training.build import build, open_session
from runner.training.experiment import Experiment
from runner.training.start import begin, continued_start
from runner.training.steps import replay

log = logging.getLogger(__name__)


def name_the_node(error: NonFiniteLossError, experiment: Experiment, directory: RunDirectory) -> None:
    """Raise NumericError with the node at which the values of a run ceased to be finite; return where none is found.

    What keeps its steps from being repeated is said in the log, and is no error of its own.
    """
    where = "Its origin"
    try:
        start = continued_start(experiment, directory)
        first_step = start.step
        log.error("%s; repeating steps %d to %d to find its origin", error, first_step, error.step)
        again = as_it_went(experiment, directory, first_step)
        if again is None:
            log.warning(
                "the order in which clients overlapped cannot be repeated from step %d on: another race is run, and "
                "what it finds need not be what happened",
                first_step,
            )
            where = "A possible origin, that of another race"
        with open_session(again or experiment, directory, check_finite=True) as session:
            begin(session, start)
            replay(session, again or experiment, first_step, error.step)
    except NumericError as origin:
        raise NumericError(f"{error}. {where}: {origin}") from origin
    except RunnerError as other:
        log.error("its origin was not found: %s", other)


def as_it_went(experiment: Experiment, directory: RunDirectory, first_step: int) -> Experiment | None:
    """The experiment with what was decided on the way, so that its steps from ``first_step`` on can be repeated.

    None where what it came to depends on the order in which clients ended, and that is not known from there on: it is
    recorded from the start of a process on, and is that of a run from its first step only where it began there and has
    no checkpoint since.
    """
    config: Any = experiment.config
    # Some earlier start of the run may have had backup workers, and this one not.
    if getattr(config.parallelism, "backup_workers", 0) and directory.contributors_jsonl.exists():
        strategy = dataclasses.replace(config.parallelism, replay=str(directory.contributors_jsonl))
        return build(dataclasses.replace(config, parallelism=strategy))
    if not experiment.program.repeated_by_endings:
        return experiment
    if first_step or not directory.endings_jsonl.exists():
        return None
    strategy = dataclasses.replace(config.parallelism, replay=str(directory.endings_jsonl), virtual_time=False)
    # The order says all that slow wires had a say in, and the one process that keeps it has none.
    cluster = dataclasses.replace(config.cluster, emulate=False)
    return build(dataclasses.replace(config, parallelism=strategy, cluster=cluster))
