"""Recovery from a lost worker: a new process replaces it, and all processes return to a state between two updates.

The state is the newest copy of the variables in the master's memory, so it does not depend on the lost worker. Copies
are frequent, so that few steps are repeated. Unless its workers race, a recovered run has the weights of an undisturbed
run bit for bit, because samples, draws and orders of summation depend only on seed, step and worker.

If updates are possible without the lost worker, as with backup workers, the run does not wait for the new process. If
pushes are independent and the remaining processes have all saved variables, as with ``async_data``, the run continues
from their present values.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from runner.config.schema import Config
from runner.engine.cluster.cluster_session import ClusterSession
from runner.engine.compile.program import SAVE
from runner.engine.run.session import Session
from runner.errors import NotStartedAgainError, WorkerLostError
from runner.records.record import Record
from runner.records.recoveries import append_recovery, count_recoveries
from runner.records.run_directory import RunDirectory
from runner.training.restart_budget import RestartBudget, steps_text
from runner.training.saving import Progress, Start, restore

log = logging.getLogger(__name__)

Variables = Mapping[str, NDArray[Any]]

_LEAST_S = 0.1
_COST = 50
"""Smallest ratio of the time between two copies of the variables to the duration of a copy.

The shortest of the newest ``_COPIES`` durations counts, so that a copy that was delayed does not delay the next one.
"""

_COPIES = 8


@dataclass(frozen=True)
class Boundary:
    """A state between two updates.

    restore: sets all variables of a session. source: origin of the values, as text. variables: None if not in memory.
    """

    progress: Progress
    restore: Callable[[Session], None]
    source: str
    variables: Variables | None = None

    def saved(self, done: int) -> Variables | None:
        """Return the variables if they are in memory and in the checkpoint after ``done`` updates, else None."""
        return self.variables if self.progress.done == self.progress.saved_step == done else None


_REDONE, _REJOINED = "redone_s", "rejoined_step"


class Recovery:
    """The recoveries of one run and their records, the newest boundary, and the limit of restarts."""

    def __init__(
        self, session: ClusterSession, directory: RunDirectory, record: Record, restarts: int, start: Start
    ) -> None:
        """Prepare recoveries. restarts: ``train.restarts``. start: the state to which the run can return first."""
        source = "initial values" if start.checkpoint is None else "checkpoint"
        self.boundary = Boundary(Progress(start.step), start.restore, source)
        self.budget = RestartBudget(restarts, directory.path)
        self._session = session
        self._directory = directory
        self._record = record
        self._without_values: set[str] = set()  # new processes whose variables have no values yet
        self._next_copy = time.monotonic() + _LEAST_S
        self._durations: deque[float] = deque(maxlen=_COPIES)  # seconds of the newest copies
        # Facts of a recovery whose interrupted step is not repeated yet, or whose new processes do not take part yet;
        # facts that are not known yet are None.
        self._facts: dict[str, Any] | None = None
        self._restored = 0.0  # time.monotonic() when its state was restored

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed since the newest copy of the variables."""
        return time.monotonic() >= self._next_copy

    def keep(self, progress: Progress, variables: Variables) -> None:
        """Keep fetched variables as the newest boundary."""
        set_all = partial(restore, variables=variables)
        self.boundary = Boundary(replace(progress), set_all, "memory of the master", variables)
        self._next_copy = max(self._next_copy, time.monotonic() + _LEAST_S)

    def copy(self, progress: Progress) -> None:
        """Fetch and keep the variables."""
        self._session.load(SAVE)  # outside the measured duration, which delays the next copy
        begun = time.monotonic()
        variables = self._session.run(SAVE)
        ended = time.monotonic()
        self._durations.append(ended - begun)
        self._next_copy = ended + _COST * min(self._durations)
        self.keep(progress, variables)

    def recover(
        self, lost: WorkerLostError, steps: range, can_go_on: Callable[[], bool], present: Progress | None = None
    ) -> str:
        """Replace the lost worker and return to the boundary; return a description of the recovery.

        steps: the series of updates that was interrupted. can_go_on: returns whether updates are possible before the
        new process has joined; see :meth:`~runner.engine.cluster.cluster_session.ClusterSession.recover`. present: the
        progress of the run, whose state becomes the boundary unless a new process has saved variables; None if the
        present variables may be invalid. Raises WorkerLostError if a worker is lost during the recovery;
        NotStartedAgainError if the worker cannot be replaced: the caller then calls :meth:`give_up`.
        """
        self.close()
        log.warning("%s", lost)
        epoch = self._directory.next_start()
        facts: dict[str, Any] = {
            "epoch": epoch,
            "worker": lost.worker,
            "cause": lost.cause,
            "step": steps[0],
            "continued_from": self.boundary.progress.done,
        }
        try:
            recovered = self._session.recover(lost.worker, epoch, can_go_on)
            begun, source = time.monotonic(), self.boundary.source
            self._without_values.update(recovered.replaced)
            if present is not None and self._session.participants(SAVE).isdisjoint(self._without_values):
                self.copy(present)
                source = "other processes"
            self.boundary.restore(self._session)
            self._without_values.clear()
        except NotStartedAgainError:
            self._facts = facts
            raise
        except WorkerLostError as again:
            failed = {"replaced": [], "failed": f"{again.worker} {again.cause}"}
            append_recovery(self._directory.recoveries_jsonl, facts | failed)
            raise
        restored = time.monotonic()
        waited = recovered.started_s is not None
        seconds = recovered.fenced_s + (recovered.started_s or 0.0) + restored - begun
        first = self.boundary.progress.done
        facts |= {
            "continued_from": first,
            "replaced": list(recovered.replaced),
            "state_from": source,
            "seconds": seconds,
            "found_s": recovered.silence_s,
            "fenced_s": recovered.fenced_s,
            "started_s": recovered.started_s,
            "state_s": restored - begun,
            _REDONE: None,
            **({} if waited else {_REJOINED: None}),
        }
        self._facts, self._restored = facts, restored
        self._record.rewind(first)
        count = 1 + count_recoveries(self._directory.recoveries_jsonl)
        self._record.metrics(first, {"perf/recoveries": count, "perf/recovery_s": seconds})
        names = f"{', '.join(recovered.replaced)} {'was' if len(recovered.replaced) == 1 else 'were'}"
        began = f"started again in {seconds:.1f} s" if waited else "started again"
        text = (
            f"{lost.worker} {lost.cause} in {steps_text(steps)}: {names} {began} "
            f"(restart {self.budget.used} of {self.budget.restarts}); the run continues from step {first}"
            f"{'' if waited else ', and does not wait for the new process'}"
        )
        log.warning("%s", text)
        return text

    def after_step(self, done: int) -> None:
        """Record the newest recovery once its interrupted step has been repeated and all workers take part again.

        done: number of updates.
        """
        facts = self._facts
        if facts is None:
            return
        if self._session.absent:
            self.budget.postpone_reset(done)
        if facts[_REDONE] is None and done > facts["step"]:
            facts[_REDONE] = time.monotonic() - self._restored
        if facts.get(_REJOINED, 0) is None and not self._session.absent:
            facts[_REJOINED] = done - 1
            log.info("step %d: %s can take part again", done - 1, ", ".join(facts["replaced"]))
        if None not in (facts[_REDONE], facts.get(_REJOINED, 0)):
            self.close()
            self._session.start_spares()

    def give_up(self, error: NotStartedAgainError) -> None:
        """Record that the newest recovery has not replaced the lost workers."""
        assert self._facts is not None
        self._facts.update({"replaced": [], "remaining": error.remaining})
        self.close()

    def close(self) -> None:
        """Record a recovery whose interrupted step was not repeated, or whose new processes did not take part."""
        if self._facts is not None:
            append_recovery(self._directory.recoveries_jsonl, self._facts)
            self._facts = None


def recovery_of(
    config: Config, session: Session, directory: RunDirectory, record: Record, start: Start
) -> Recovery | None:
    """Return the recoveries of a run; None without restarts or without worker processes."""
    restarts = config.train.restarts
    if not restarts or not isinstance(session, ClusterSession):
        return None
    if config.cluster.spares:
        session.load("restore")  # so that the first recovery does not wait for it
    return Recovery(session, directory, record, restarts, start)
