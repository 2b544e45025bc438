"""Recovery of a run that lost a worker: new processes continue from a copy of the variables in the master's memory.

A recovered run has the weights of an undisturbed one, bit for bit unless its workers race, because samples, draws and
orders of summation depend only on seed, step and worker.
"""

import json
import logging
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from runner.config.schema import LOCAL, Config
from runner.engine.cluster.cluster_session import ClusterSession
from runner.engine.run.session import Session
from runner.errors import ClusterError, WorkerLostError
from runner.records.record import Record
from runner.records.run_directory import RunDirectory
from runner.training.saving import Progress, Start, restore

log = logging.getLogger(__name__)

Variables = Mapping[str, NDArray[Any]]

RESET_STEPS = 20
"""Number of updates beyond the step of every earlier fault after which the count of restarts begins at 0 again."""

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
    """The recoveries of one run: the newest boundary, the limit of restarts, and the records of all recoveries."""

    def __init__(
        self, session: ClusterSession, directory: RunDirectory, record: Record, restarts: int, start: Start
    ) -> None:
        """Prepare recoveries. restarts: ``train.restarts``. start: the state to which the run can return first."""
        self.boundary = Boundary(Progress(start.step, start.step), start.restore)
        self.count = 0
        self._session = session
        self._directory = directory
        self._record = record
        self._restarts = restarts
        self._used = 0
        self._furthest = -1
        self._faults: set[tuple[str, str, int]] = set()
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

    def admit(self, lost: WorkerLostError, progress: Progress) -> None:
        """Count a fault; raise ClusterError if it occurred before in this step, or if no restart is left.

        progress: the progress until the fault.
        """
        step, fault = progress.done, (lost.worker, lost.cause, progress.done)
        if step >= self._furthest + RESET_STEPS or (progress.saved_step or 0) > self._furthest >= 0:
            self._used = 0
        if fault in self._faults and not lost.by_chance:
            raise ClusterError(f"{lost}\n{lost.worker} {lost.cause} a second time in step {step}: the fault recurs")
        if self._used == self._restarts:
            raise ClusterError(
                f"{lost}\nThe processes were already restarted {self._used} times (train.restarts) without "
                f"{RESET_STEPS} further steps or a new checkpoint; remove the cause, then continue with: "
                f"runner resume={shlex.quote(str(self._directory.path))}"
            )
        self._used += 1
        self._furthest = max(self._furthest, step)
        self._faults.add(fault)

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
        self.count += 1
        facts = {"worker": lost.worker, "cause": lost.cause, "step": step, "continued_from": first, "seconds": seconds}
        with self._directory.recoveries_jsonl.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"epoch": epoch, "time": time.time(), **facts}) + "\n")
        self._record.rewind(first)
        self._record.metrics(first, {"perf/recoveries": self.count, "perf/recovery_s": seconds})
        text = (
            f"{lost.worker} {lost.cause} in step {step}: all processes were restarted in {seconds:.1f} s "
            f"(restart {self._used} of {self._restarts}); the run continues from step {first}"
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
