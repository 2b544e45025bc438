"""Sweeps from Python."""

import io
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.api.arguments import arguments
from runner.api.runs import Run
from runner.commands.sweep import OptimizedSweep, start
from runner.config import hydra_app
from runner.plugin.session import SessionClass
from runner.sweeps.freezing import sweep_directory
from runner.sweeps.outcome import Outcome, monitor_of_outcomes, read_outcome
from runner.sweeps.plan import Plan
from runner.sweeps.report import best_directory
from runner.sweeps.table import SweepTable, sweep_table

if TYPE_CHECKING:
    import pandas as pd


class Sweep:
    """A sweep in a directory. The properties read the directory, so they also work while the sweep runs."""

    def __init__(self, directory: Path, classes: Sequence[SessionClass] = ()) -> None:
        """classes: the classes of this Python session that the configurations of the jobs name."""
        self.directory = directory
        self._classes = classes

    def __repr__(self) -> str:
        return self._table().text()

    def frame(self) -> "pd.DataFrame":
        """Return the jobs as a pandas frame, best first: number, swept values, metrics, status, run directory."""
        import pandas as pd

        return pd.read_csv(io.StringIO(self._table().csv()))

    @property
    def best(self) -> Run:
        """The finished run with the best metric (``train.monitor``). Raises ConfigError if no job finished."""
        return Run(best_directory(Plan.read(self.directory), self.directory), self._classes)

    @property
    def runs(self) -> list[Run]:
        """The finished or simulated runs, in the order of their jobs."""
        return [Run(Path(job.directory), self._classes) for job in self._outcomes() if job.complete]

    def _outcomes(self) -> list[Outcome]:
        return [read_outcome(job, self.directory) for job in Plan.read(self.directory).grid]

    def _table(self) -> SweepTable:
        outcomes = self._outcomes()
        return sweep_table(outcomes, monitor_of_outcomes(outcomes))


def sweep(overrides: Sequence[str] = (), /, *rest: object, **keywords: Any) -> Sweep:
    """Train every combination of values, as ``runner -m OVERRIDES`` does, and return the sweep.

    overrides: texts such as "optimizer.lr=0.01,0.1". keywords: as for :func:`~runner.api.runs.run`, but a list is a
    list of values to try: seed=[1, 2, 3]. For a key that is itself a list, give a list of lists: **{"model.hidden":
    [[64], [128]]}. directory: the directory of the sweep (hydra.sweep.dir).

    A job that fails does not end the sweep: its error is in :meth:`Sweep.frame`. Raises ConfigError if the jobs
    cannot be composed, or if other processes would need classes of this Python session.
    """
    given = arguments("sweep", overrides, rest, keywords, directory="hydra.sweep.dir", swept=True)
    command = ["-m", *given.overrides]
    with given.in_force():
        with ExitStack() as ended:
            optimized = OptimizedSweep(command, ended, show=False)
            jobs = hydra_app.compose_jobs(command, optimized.run_batch)
        if jobs:
            start(jobs, command, show=False)
    if jobs:
        return Sweep(sweep_directory(jobs), given.classes)
    assert optimized.running is not None, "a sweeper that returns no jobs has run them"
    return Sweep(optimized.running.directory, given.classes)
