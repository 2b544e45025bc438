"""Time of a training step, the same network and batch under several strategies, alternating in one go."""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from threadpoolctl import threadpool_limits

from runner.build import build, open_session
from runner.config import fix_machine_values
from runner.cores import usable_cores
from runner.engine.session import Session
from runner.experiment import Experiment
from runner.hydra_app import compose
from runner.run_directory import RunDirectory
from runner.train import train_step

WARM_UP_STEPS = 5
ROUNDS = 5
STEPS_PER_ROUND = 8

STRATEGIES = {
    "single, 1 thread": ("parallelism=single", "cluster.threads_per_worker=1"),
    "single, all cores": ("parallelism=single",),
    "sync_data, 2 workers": ("parallelism=sync_data", "parallelism.workers=2"),
}
CASES = {
    "mlp 784-512-512-10, batch 32": ("model=mlp", "data=synthetic", "data.shape=[1,28,28]", "data.classes=10"),
    "lenet 28x28, batch 32": ("model=lenet", "data=synthetic", "data.shape=[1,28,28]", "data.classes=10"),
    "cifar_convnet 32x32, batch 32": (
        "model=cifar_convnet",
        "data=synthetic",
        "data.shape=[3,32,32]",
        "data.classes=10",
    ),
}


@dataclass(frozen=True)
class Timing:
    """Seconds of single training steps of one case under one strategy."""

    case: str
    strategy: str
    seconds: tuple[float, ...]

    @property
    def row(self) -> str:
        """A row of a Markdown table: median and quartiles in ms, examples per second."""
        low, median, high = statistics.quantiles(self.seconds, n=4)
        rate = 32 / median
        return (
            f"| {self.case} | {self.strategy} | {median * 1e3:.2f} | {low * 1e3:.2f}-{high * 1e3:.2f} | {rate:,.0f} |"
        )


def measure(case: str) -> list[Timing]:
    """Time every strategy on one case. Rounds alternate, so that a drift of the machine meets all of them."""
    seconds: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        opened = {
            strategy: _open(stack, folder / str(number), (*CASES[case], *overrides))
            for number, (strategy, overrides) in enumerate(STRATEGIES.items())
        }
        for round_number in range(ROUNDS):
            for strategy, (experiment, session) in opened.items():
                first = WARM_UP_STEPS + round_number * STEPS_PER_ROUND
                # The budget is the process's: with several sessions open, each round sets its own.
                with threadpool_limits(experiment.threads_per_worker):
                    for step in range(first, first + STEPS_PER_ROUND):
                        started = time.perf_counter()
                        train_step(session, experiment, step)
                        seconds[strategy].append(time.perf_counter() - started)
    return [Timing(case, strategy, tuple(times)) for strategy, times in seconds.items()]


def _open(stack: ExitStack, run_dir: Path, overrides: tuple[str, ...]) -> tuple[Experiment, Session]:
    config = fix_machine_values(compose(["tracking=none", *overrides]).config(), usable_cores())
    experiment = build(config)
    directory = stack.enter_context(RunDirectory.open(run_dir, resume=False))
    session = stack.enter_context(open_session(experiment, directory, check_finite=False))
    session.run("init")
    for step in range(WARM_UP_STEPS):
        train_step(session, experiment, step)
    return experiment, session
