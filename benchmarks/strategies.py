"""The same network and batch under several strategies, trained as by the command ``runner`` and timed in turns."""

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.alternate import alternate, load, started
from benchmarks.cases import CASES, Case
from benchmarks.cells import markdown, milliseconds
from benchmarks.compare import WARM_UP
from benchmarks.results import SubjectResult, quartiles
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
    strategies: Sequence[SubjectResult]

    def rate(self, strategy: SubjectResult) -> float:
        """Return the examples per second of a strategy, from the median step."""
        return self.batch / statistics.median(strategy.seconds["step"])


def configured(name: str, case: Case, parallelism: Sequence[str], *, threads: int, batch: int) -> SubjectSpec:
    """Return the command that trains a case under a strategy. As in a normal run, it may use all cores.

    threads: thread budget of each worker. batch: examples per step over all workers.
    """
    overrides = case.overrides(threads=threads, parallelism=parallelism, batch=batch, batches=BATCHES)
    return SubjectSpec(name, "", "benchmarks.configured", overrides)


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
            spec = configured(label, case, parallelism, threads=budget, batch=case.batch)
            contestants.append(started(spec, Path(folder), stack, threads=budget, pinned=False))
            load(contestants[-1])
            contestants[-1].ask("run", phase="step", times=WARM_UP)
        alternate(contestants, "step", rounds=rounds, turn=turn or case.turn)
    return StrategyTable(name, case.title, case.batch, [each.result for each in contestants])


def strategies_section(tables: Sequence[StrategyTable]) -> str:
    """Return a table of one network's training step under several strategies."""
    header = ("case", "strategy", "step, ms", "quartiles, ms", "examples/s")
    rows = [_strategy_row(table, strategy) for table in tables for strategy in table.strategies]
    return f"## Strategies with equal total batch, float32\n\n{markdown(header, rows)}"


def _strategy_row(table: StrategyTable, strategy: SubjectResult) -> Sequence[str]:
    if strategy.failure:
        return (table.title, strategy.name, strategy.failure.replace("|", "/"), "", "")
    low, high = quartiles(strategy.seconds["step"])
    return (
        table.title,
        strategy.name,
        milliseconds(strategy.median("step")),
        f"{milliseconds(low)}-{milliseconds(high)}",
        f"{table.rate(strategy):,.0f}",
    )
