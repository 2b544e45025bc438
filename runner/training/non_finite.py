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
    """Return the experiment that repeats the steps from ``first_step`` on, by the run's record if its workers race.

    None if the values depend on the order in which clients ended and that order is not known from ``first_step`` on: a
    record begins with the start of a process, so it repeats a run only from its first step. The order of virtual time
    begins again at each checkpoint, so it is always known.
    """
    config: Any = experiment.config
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
    # The record holds the order that slow links led to, and one process has no links.
    cluster = dataclasses.replace(config.cluster, emulate=False)
    return build(dataclasses.replace(config, parallelism=strategy, cluster=cluster))
