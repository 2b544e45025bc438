"""The limit of restarts after faults, for the processes of a run and for its master."""

import shlex
from pathlib import Path

from runner.errors import ClusterError, ResourceError, WorkerLostError

RESET_STEPS = 20
"""A fault resets the count of restarts to 0 if it occurs at least this many updates after all earlier faults.

Updates that are made before a new process takes part do not count.
"""


class RestartBudget:
    """The remaining restarts, and the faults so far. used: number of restarts since the last reset of the count."""

    def __init__(self, restarts: int, run_dir: Path) -> None:
        """restarts: ``train.restarts``. run_dir: the directory that error messages name."""
        self.restarts = restarts
        self.used = 0
        self._run_dir = run_dir
        self._furthest = -1
        self._out_of_memory = False
        self._reports: list[tuple[str, range, str]] = []

    def postpone_reset(self, step: int) -> None:
        """Count the steps until a reset from ``step`` on, because a new process does not take part yet."""
        self._furthest = max(self._furthest, step)

    def admit(self, lost: WorkerLostError, step: int, saved_step: int | None, series: int = 1) -> None:
        """Count a fault; raise ClusterError if no restart is left, or if the same fault occurred in this step before.

        A recurring fault is due to the input, not to the machine. The error contains the report of the first fault.
        Raises ResourceError for a second process that was killed for lack of memory, because a third would follow.
        step: number of updates before the fault. saved_step: step of the newest checkpoint; None without a checkpoint.
        series: number of updates in the interrupted series, which begins with update ``step``.
        """
        steps = range(step, step + series)
        if step >= self._furthest + RESET_STEPS or (saved_step or 0) > self._furthest >= 0:
            self.used = 0
            self._out_of_memory = False
        if lost.out_of_memory and self._out_of_memory:
            raise ResourceError(
                f"{lost}\nThis is the second process that was killed for lack of memory: use a smaller batch, model or "
                "number of workers, or more memory"
            )
        self._out_of_memory |= lost.out_of_memory
        same = [text for cause, at, text in self._reports if cause == lost.cause and set(at) & set(steps)]
        if same and not lost.by_chance:
            again = f"{lost.worker} {lost.cause} a second time in {steps_text(steps)}, so the run is not restarted"
            raise ClusterError(f"{same[0]}\n{again}")
        if self.used == self.restarts:
            raise ClusterError(
                f"{lost}\nThe processes were already restarted {self.used} times (train.restarts) without "
                f"{RESET_STEPS} further steps or a new checkpoint; remove the cause, then continue with: "
                f"runner resume={shlex.quote(str(self._run_dir))}"
            )
        self.used += 1
        self._furthest = max(self._furthest, step)
        self._reports.append((lost.cause, steps, str(lost)))


def steps_text(steps: range) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"one of the steps {steps[0]} to {steps[-1]}"
