"""The limit of restarts after faults, for the processes of a run and for its master."""

import shlex
from pathlib import Path

from runner.errors import ClusterError, ResourceError, WorkerLostError

RESET_STEPS = 20
"""Number of updates beyond the step of every earlier fault after which the count of restarts begins at 0 again."""


class RestartBudget:
    """The restarts that are left, and the faults so far. used: number of restarts since the count began at 0."""

    def __init__(self, restarts: int, run_dir: Path) -> None:
        """restarts: ``train.restarts``. run_dir: the directory that error messages name."""
        self.restarts = restarts
        self.used = 0
        self._run_dir = run_dir
        self._furthest = -1
        self._out_of_memory = False
        self._reports: dict[tuple[str, int], str] = {}

    def admit(self, lost: WorkerLostError, step: int, saved_step: int | None) -> None:
        """Count a fault; raise ClusterError if no restart is left, or if a fault like this one occurred in this step.

        The error then has the report of the first of the two faults: its cause is the input, not the machine. Raises
        ResourceError for a second process that was killed for lack of memory, because a third would follow.
        step: number of updates before the fault. saved_step: step of the newest checkpoint, None if there is none.
        """
        if step >= self._furthest + RESET_STEPS or (saved_step or 0) > self._furthest >= 0:
            self.used = 0
            self._out_of_memory = False
        if lost.out_of_memory and self._out_of_memory:
            raise ResourceError(
                f"{lost}\nThis is the second process that was killed for lack of memory: use a smaller batch, model or "
                "number of workers, or more memory"
            )
        self._out_of_memory |= lost.out_of_memory
        first = None if lost.by_chance else self._reports.get((lost.cause, step))
        if first is not None:
            raise ClusterError(f"{first}\n{lost.worker} {lost.cause} a second time in step {step}: the fault recurs")
        if self.used == self.restarts:
            raise ClusterError(
                f"{lost}\nThe processes were already restarted {self.used} times (train.restarts) without "
                f"{RESET_STEPS} further steps or a new checkpoint; remove the cause, then continue with: "
                f"runner resume={shlex.quote(str(self._run_dir))}"
            )
        self.used += 1
        self._furthest = max(self._furthest, step)
        self._reports[lost.cause, step] = str(lost)
