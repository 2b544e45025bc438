"""Mean and spread over the jobs of a sweep that differ in their seed only."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.config.monitor import Monitor
from runner.sweep.outcome import FINISHED, Outcome
from runner.sweep.table import (
    SweepTable,
    number,
    rank,
    shown_metrics,
    shown_value,
    status_text,
    step_milliseconds,
    swept_values,
)

SEED = "seed"


@dataclass(frozen=True)
class OverSeeds:
    """The jobs of one combination of the other keys. Means and spreads are over finished jobs only."""

    swept: Mapping[str, str]
    outcomes: Sequence[Outcome]

    @property
    def finished(self) -> list[Outcome]:
        """The jobs with a result."""
        return [outcome for outcome in self.outcomes if outcome.status == FINISHED]

    def values(self, metric: str) -> list[float]:
        """Best values of a metric, one for each seed."""
        return [outcome.best[metric] for outcome in self.finished if metric in outcome.best]

    @property
    def status(self) -> str:
        """The status if all jobs finished; otherwise the number of jobs with each status, and the first error."""
        counts = Counter(outcome.status for outcome in self.outcomes)
        if list(counts) == [FINISHED]:
            return FINISHED
        errors = [status_text(outcome) for outcome in self.outcomes if outcome.error is not None]
        text = ", ".join(f"{count} {status}" for status, count in counts.items())
        return f"{text} ({errors[0]})" if errors else text


def mean_of(values: Sequence[float]) -> float | None:
    """Return the arithmetic mean; None for no values."""
    return statistics.fmean(values) if values else None


def spread_of(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (divisor n - 1); None for one value, nan if a value is not finite."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def over_seeds(outcomes: Sequence[Outcome], monitor: Monitor) -> list[OverSeeds]:
    """Return the combinations of keys other than the seed, best mean first; empty unless several seeds were swept."""
    swept = swept_values(outcomes)
    if len({values[SEED] for values in swept if SEED in values}) < 2:
        return []
    groups: dict[tuple[tuple[str, str], ...], list[Outcome]] = {}
    for values, outcome in zip(swept, outcomes, strict=True):
        others = tuple((key, value) for key, value in values.items() if key != SEED)
        groups.setdefault(others, []).append(outcome)
    found = [OverSeeds(dict(others), jobs) for others, jobs in groups.items()]
    return sorted(found, key=lambda each: rank(bool(each.finished), _means(each, monitor), monitor))


def seeds_table(groups: Sequence[OverSeeds], monitor: Monitor, *, columns_apart: bool = False) -> SweepTable:
    """Return a row for each combination: keys, n (finished seeds), mean and spread of metrics, step time, status.

    columns_apart: mean and spread in separate columns, for programs, instead of ``mean ± spread``.
    """
    keys = list(dict.fromkeys(key for group in groups for key in group.swept))
    metrics = shown_metrics([outcome for group in groups for outcome in group.outcomes], monitor)
    headers = [header for name in metrics for header in _headers(f"best {name}", columns_apart)]
    rows = tuple(
        (
            *(shown_value(group.swept, key) for key in keys),
            str(len(group.finished)),
            *(cell for name in metrics for cell in _cells(group.values(name), columns_apart)),
            number(mean_of([time for job in group.finished if (time := step_milliseconds(job)) is not None]), 2),
            group.status,
        )
        for group in groups
    )
    return SweepTable((*keys, "n", *headers, "step time (ms)", "status"), rows)


def _means(group: OverSeeds, monitor: Monitor) -> dict[str, float]:
    means = {name: mean_of(group.values(name)) for name in (monitor.metric, "test/loss")}
    return {name: mean for name, mean in means.items() if mean is not None}


def _headers(name: str, columns_apart: bool) -> list[str]:
    return [f"{name} mean", f"{name} sd"] if columns_apart else [f"{name} (mean ± sd)"]


def _cells(values: Sequence[float], columns_apart: bool) -> list[str]:
    mean, spread = number(mean_of(values), 4), number(spread_of(values), 4)
    if columns_apart:
        return [mean, spread]
    return [f"{mean} ± {spread}" if spread else mean]
