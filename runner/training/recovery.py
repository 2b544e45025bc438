"""Recovery of a run that lost a worker: new processes continue from a copy of the variables in the master's memory.

A recovered run has the weights of an undisturbed one, bit for bit unless its workers race, because samples, draws and
orders of summation depend only on seed, step and worker.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from runner.config.schema import LOCAL, Config
from runner.engine.cluster.cluster_session import ClusterSession
from runner.engine.run.session import Session
from runner.errors import WorkerLostError
from runner.records.record import Record
from runner.records.recoveries import append_recovery, count_recoveries
from runner.records.run_directory import RunDirectory
from runner.training.restart_budget import RestartBudget
from runner.training.saving import Progress, Start, restore

log = logging.getLogger(__name__)

Variables = Mapping[str, NDArray[Any]]

_LEAST_S = 1.0
_COST = 50
"""The time between two copies of the variables is at least this many times the duration of a copy."""


@dataclass(frozen=True)
class Boundary:
    """A state between two updates. restore: sets all variables of a session. variables: None if not in memory."""

    progress: Progress
    restore: Callable[[Session], None]
    variables: Variables | None = None


class Recovery:
    """The recoveries of one run: the newest boundary, the limit of restarts, and their records."""

    def __init__(
        self, session: ClusterSession, directory: RunDirectory, record: Record, restarts: int, start: Start
    ) -> None:
        """Prepare recoveries. restarts: ``train.restarts``. start: the state to which the run can return first."""
        self.boundary = Boundary(Progress(start.step, start.step), start.restore)
        self.budget = RestartBudget(restarts, directory.path)
        self._session = session
        self._directory = directory
        self._record = record
        self._next_copy = time.monotonic() + _LEAST_S

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed since the newest copy of the variables."""
        return time.monotonic() >= self._next_copy

    def keep(self, progress: Progress, variables: Variables) -> None:
        """Keep fetched variables as the newest boundary."""
        self.boundary = Boundary(replace(progress), partial(restore, variables=variables), variables)
        self._next_copy = max(self._next_copy, time.monotonic() + _LEAST_S)

    def copy(self, progress: Progress) -> None:
        """Fetch and keep the variables. No launched client may be running."""
        begun = time.monotonic()
        variables = self._session.run("save")
        ended = time.monotonic()
        self._next_copy = ended + _COST * (ended - begun)
        self.keep(progress, variables)

    def restart(self, lost: WorkerLostError, step: int) -> str:
        """Start new processes, return to the boundary, and record the recovery; return its description.

        step: the step that was interrupted. Raises WorkerLostError if a worker is lost meanwhile.
        """
        begun = time.monotonic()
        log.warning("%s", lost)
        first, epoch = self.boundary.progress.done, self._directory.next_start()
        self._session.restart(epoch)
        self.boundary.restore(self._session)
        seconds = time.monotonic() - begun
        path = self._directory.recoveries_jsonl
        append_recovery(path, lost, step=step, continued_from=first, epoch=epoch, seconds=seconds)
        self._record.rewind(first)
        self._record.metrics(first, {"perf/recoveries": count_recoveries(path), "perf/recovery_s": seconds})
        text = (
            f"{lost.worker} {lost.cause} in step {step}: all processes were restarted in {seconds:.1f} s "
            f"(restart {self.budget.used} of {self.budget.restarts}); the run continues from step {first}"
        )
        log.warning("%s", text)
        return text


def recovery_of(
    config: Config, session: Session, directory: RunDirectory, record: Record, start: Start
) -> Recovery | None:
    """Return the recoveries of a run; None if it has no worker processes that this process can start again."""
    restarts, local = config.train.restarts, config.cluster.launcher.kind == LOCAL
    if not (restarts and local and isinstance(session, ClusterSession)):
        return None
    return Recovery(session, directory, record, restarts, start)
