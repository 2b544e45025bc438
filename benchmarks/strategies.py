"""The same network and batch under several strategies, trained as by the command ``runner`` and timed in turns."""

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.alternate import Contestant, alternate
from benchmarks.cases import CASES, Case
from benchmarks.compare import WARM_UP
from benchmarks.process import SubjectProcess
from benchmarks.results import SubjectResult, subject_result
from benchmarks.subjects import SubjectSpec

PREFIX = "strategies/"
STRATEGY_CASES = {f"{PREFIX}{name}": CASES[name] for name in ("mlp", "lenet", "cifar_convnet")}
"""Name on the command line -> case."""


BATCHES = 16
"""Number of synthetic batches in an epoch. The examples are shuffled in every epoch."""


@dataclass(frozen=True)
class StrategyTable:
    """One case under every strategy."""

    case: str
    title: str
    batch: int
    strategies: tuple[SubjectResult, ...]

    def rate(self, strategy: SubjectResult) -> float:
        """Return the examples per second of a strategy, from the median step."""
        return self.batch / statistics.median(strategy.seconds["step"])


def configured(
    name: str, case: Case, parallelism: Sequence[str], folder: Path, *, threads: int, batch: int
) -> SubjectProcess:
    """Start a case under a strategy. As in a normal run, the process may use all cores.

    threads: thread budget of each worker. batch: examples per step over all workers.
    """
    overrides = case.overrides(threads=threads, parallelism=parallelism, batch=batch, batches=BATCHES)
    spec = SubjectSpec(name, "", "benchmarks.configured", overrides)
    return SubjectProcess(spec, threads=threads, log=folder / f"{name}.log", pinned=False)


def measure_strategies(name: str, *, threads: int, rounds: int, turn: int | None) -> StrategyTable:
    """Time the training step of a case of :data:`STRATEGY_CASES` under every strategy."""
    case = STRATEGY_CASES[name]
    strategies = {
        "single, 1 thread": (("parallelism=single",), 1),
        f"single, {threads} threads": (("parallelism=single",), threads),
        f"sync_data, {threads} workers": (("parallelism=sync_data", f"parallelism.workers={threads}"), 1),
    }
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, ExitStack() as stack:
        contestants = []
        for label, (parallelism, budget) in strategies.items():
            process = configured(label, case, parallelism, Path(folder), threads=budget, batch=case.batch)
            contestants.append(Contestant(label, stack.enter_context(process)))
            contestants[-1].ask("load")
            contestants[-1].ask("run", phase="step", times=WARM_UP)
        alternate(contestants, "step", rounds=rounds, turn=turn or case.turn)
    return StrategyTable(name, case.title, case.batch, tuple(subject_result(each) for each in contestants))
