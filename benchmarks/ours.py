"""Time runner on the problem in FOLDER: ``python -m benchmarks.ours FOLDER``."""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from benchmarks.experiments import feeds, fixed_batch, opened, timed_experiment
from benchmarks.problem import Problem, load_problem
from benchmarks.protocol import Run, serve
from benchmarks.timed_single import CLIENTS
from runner.engine.run.kernel_table import native_libraries
from runner.records.summary import versions


class Ours:
    """The problem's configuration in a session of this process."""

    def __init__(self, problem: Problem, stack: ExitStack) -> None:
        self._problem = problem
        self._stack = stack

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the versions of runner, NumPy and the native kernel libraries; "none" for a missing library."""
        own = {name: version for name, version in versions().items() if name in ("runner", "numpy")}
        return own | {each.name: each.version.split()[0] if each.version else "none" for each in native_libraries()}

    def load(self) -> None:
        """Open the session. The seed of the configuration yields the initial values of the problem."""
        self._experiment = timed_experiment(self._problem.overrides)
        batch = fixed_batch(self._experiment, self._problem.x, self._problem.y)
        self._session = self._stack.enter_context(opened(self._experiment, batch))

    def phase(self, name: str) -> Run:
        session, client = self._session, self._experiment.program.clients[CLIENTS[name]]
        fed = feeds(self._experiment, client, step=0)
        steps = count()

        def run() -> float:
            return float(session.run(client.name, step=next(steps), feeds=fed)["loss"])

        return run


if __name__ == "__main__":
    with ExitStack() as exit_stack:
        serve(Ours(load_problem(Path(sys.argv[1])), exit_stack))
