"""The tables of a sweep: its jobs, best first, and means and spreads over jobs that differ only in their seed."""

import csv
import io
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.config.monitor import Monitor
from runner.sweep.outcome import FINISHED, Outcome
from runner.system.redaction import redact_overrides
from runner.system.text import text_table

_METRICS = ("test/accuracy", "test/loss", "train/loss")
_ERROR_LENGTH = 60


@dataclass(frozen=True)
class SweepTable:
    """A table of text. Each row has one cell for each header."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self) -> str:
        """Return the table with aligned columns."""
        return text_table(self.headers, self.rows, ruled=True)

    def markdown(self) -> str:
        """Return the table in GitHub-flavoured Markdown."""
        lines = [self.headers, tuple("---" for _ in self.headers), *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    def csv(self) -> str:
        """Return comma-separated values as in RFC 4180."""
        file = io.StringIO()
        csv.writer(file).writerows([self.headers, *self.rows])
        return file.getvalue()

    def print(self) -> None:
        """Print the table; if the output is a terminal, with lines and bold headers."""
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        console = Console()
        if not console.is_terminal:
            console.file.write(self.text() + "\n")
            return
        table = Table(*map(escape, self.headers), header_style="bold")
        for row in self.rows:
            table.add_row(*map(escape, row))
        console.print(table)


def sweep_table(outcomes: Sequence[Outcome], monitor: Monitor) -> SweepTable:
    """Return a table with a row for each job: swept values, best value of every metric, step time, status.

    Jobs are sorted by the metric of ``monitor``, then by test loss; jobs that did not finish come last, with their
    error. Metrics that no job has are left out.
    """
    swept = swept_values(outcomes)
    keys = list(dict.fromkeys(key for values in swept for key in values))
    metrics = shown_metrics(outcomes, monitor)
    headers = (*keys, *(f"best {name}" for name in metrics), "step time (ms)", "status")
    ranks = [rank(outcome.status == FINISHED, outcome.best, monitor) for outcome in outcomes]
    order = sorted(range(len(outcomes)), key=ranks.__getitem__)
    rows = tuple(
        (
            *(shown_value(swept[job], key) for key in keys),
            *(number(outcomes[job].best.get(name), 4) for name in metrics),
            number(step_milliseconds(outcomes[job]), 2),
            status_text(outcomes[job]),
        )
        for job in order
    )
    return SweepTable(headers, rows)


def swept_values(outcomes: Sequence[Outcome]) -> list[dict[str, str]]:
    """Return, for each job, the overrides that differ between jobs (all for a single job). Secrets are not redacted."""
    jobs = [_overrides(outcome) for outcome in outcomes]
    if len(jobs) < 2:
        return jobs
    return [{key: value for key, value in job.items() if any(o.get(key) != value for o in jobs)} for job in jobs]


def shown_value(values: Mapping[str, str], key: str) -> str:
    """Return the cell for a key: the redacted value if the key names a secret, "" if there is no value."""
    (shown,) = redact_overrides([f"{key}={values.get(key, '')}"])
    return shown.partition("=")[2]


def shown_metrics(outcomes: Sequence[Outcome], monitor: Monitor) -> list[str]:
    """Return the names of the metrics that at least one job has; the metric of ``monitor`` is first."""
    names = dict.fromkeys((monitor.metric, *_METRICS))
    return [name for name in names if any(name in outcome.best for outcome in outcomes)]


def rank(finished: bool, best: Mapping[str, float], monitor: Monitor) -> tuple[bool, float, float]:
    """Return the sort key: finished first, then the best monitored value, then low test loss; unknown values last."""
    value = best.get(monitor.metric, math.nan)
    signed = -value if monitor.highest else value
    loss = best.get("test/loss", math.nan)
    return (not finished, math.inf if math.isnan(signed) else signed, math.inf if math.isnan(loss) else loss)


def number(value: float | None, digits: int) -> str:
    """Return the text of a number with ``digits`` decimals; "" for None."""
    return "" if value is None else f"{value:.{digits}f}"


def step_milliseconds(outcome: Outcome) -> float | None:
    """Return the median step time of a job in milliseconds; None if it is unknown."""
    median = None if outcome.summary is None else outcome.summary.step_time_s.get("median")
    return None if median is None else median * 1000


def status_text(outcome: Outcome) -> str:
    """Return the status of a job and, if it failed, the beginning of its error."""
    if outcome.error is None:
        return outcome.status
    text = f"{outcome.status}: {outcome.error.class_name}: {' '.join(outcome.error.message.split())}"
    return text if len(text) <= _ERROR_LENGTH else text[: _ERROR_LENGTH - 3] + "..."


def _overrides(outcome: Outcome) -> dict[str, str]:
    pairs = (override.partition("=") for override in outcome.overrides)
    return {key.lstrip("+~"): value for key, _, value in pairs}


SEED = "seed"


@dataclass(frozen=True)
class OverSeeds:
    """A group of jobs that differ only in their seed. Means and spreads are over finished jobs only."""

    swept: Mapping[str, str]
    outcomes: Sequence[Outcome]

    @property
    def finished(self) -> list[Outcome]:
        """The jobs with a result."""
        return [outcome for outcome in self.outcomes if outcome.status == FINISHED]

    def values(self, metric: str) -> list[float]:
        """Return the best values of a metric, one for each seed."""
        return [outcome.best[metric] for outcome in self.finished if metric in outcome.best]

    @property
    def status(self) -> str:
        """``FINISHED`` if all jobs finished; otherwise the number of jobs with each status, and the first error."""
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
    """Return the sample standard deviation (divisor n - 1); None for fewer than 2 values, nan if one is not finite."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def over_seeds(outcomes: Sequence[Outcome], monitor: Monitor) -> list[OverSeeds]:
    """Group jobs that differ only in their seed, best mean first; return [] unless several seeds were swept."""
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
    """Return a table with a row for each group: swept values, n (finished jobs), means and spreads, step time, status.

    columns_apart: put mean and spread in separate columns, for programs, instead of one cell ``mean ± spread``.
    """
    keys = list(dict.fromkeys(key for group in groups for key in group.swept))
    metrics = shown_metrics([outcome for group in groups for outcome in group.outcomes], monitor)
    ends = ("mean", "sd") if columns_apart else ("(mean ± sd)",)
    headers = [f"best {name} {end}" for name in metrics for end in ends]
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


def _cells(values: Sequence[float], columns_apart: bool) -> list[str]:
    mean, spread = number(mean_of(values), 4), number(spread_of(values), 4)
    if columns_apart:
        return [mean, spread]
    return [f"{mean} ± {spread}" if spread else mean]
