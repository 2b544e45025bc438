"""Train a configuration as ``runner`` does, in a benchmark process: ``python -m benchmarks.configured OVERRIDE ...``

The data pipeline and the worker processes are included. The phases are "step", which returns the loss;
"evaluations", which returns the number of times that the step computed its batch; and "series", which makes as many
steps together as a training run would and returns their number.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from time import perf_counter

from benchmarks.experiments import configuration
from benchmarks.protocol import Run, serve
from runner.engine.run.step_driver import bind
from runner.records.run_directory import RunDirectory
from runner.records.summary import versions
from runner.training.build import build, open_session
from runner.training.experiment import series_length, train_step, train_steps


class Configured:
    """A configuration, given by its overrides, in a separate run directory."""

    versions: Mapping[str, str] = versions()

    def __init__(self, overrides: Sequence[str], stack: ExitStack) -> None:
        self._overrides = overrides
        self._stack = stack
        self._steps = count()
        self._step_s = 1.0

    def load(self) -> None:
        self.experiment = build(configuration(self._overrides))
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-run-")))
        directory = self._stack.enter_context(RunDirectory.open(folder / "run", resume=False))
        session = self._stack.enter_context(open_session(self.experiment, directory, check_finite=False))
        session.run("init")
        self.step_driver = bind(self.experiment.program.step_driver, session)

    def phase(self, name: str) -> Run:
        """Return a function that runs one training step, or a series of them."""
        if name not in ("step", "evaluations", "series"):
            raise ValueError(
                f"phase {name!r}: expected 'step', 'evaluations' or 'series', the phases of a configuration"
            )

        def step() -> float:
            found = train_step(self.step_driver, self.experiment, next(self._steps))
            return float(found["loss"] if name == "step" else self.step_driver.passes)

        return step if name != "series" else self._series

    def _series(self) -> float:
        first = next(self._steps)
        length = series_length(self.step_driver.longest_series(first), self._step_s)
        for _ in range(length - 1):
            next(self._steps)
        begun = perf_counter()
        train_steps(self.step_driver, self.experiment, range(first, first + length))
        self._step_s = (perf_counter() - begun) / length
        return length


if __name__ == "__main__":
    with ExitStack() as exit_stack:
        serve(Configured(sys.argv[1:], exit_stack))
