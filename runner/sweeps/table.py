"""The tables of a sweep: its jobs, best first, and means and spreads over jobs that differ only in their seed."""

import csv
import io
import math
import os
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.config.monitor import Monitor
from runner.records.summary import in_order
from runner.sweeps.outcome import Outcome
from runner.system.redaction import redact_overrides
from runner.system.text import markdown_table, significant, text_table
from runner.tracking.base import SEED

_ERROR_LENGTH = 60
_ID_LENGTH = 8

Cell = str | int | float | None


@dataclass(frozen=True)
class SweepTable:
    """A table: column headers, which are Python identifiers, and rows with a cell for each column.

    On the terminal, numbers have four significant digits, and errors and identifiers are shortened. Files contain all
    digits and the full texts.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def text(self) -> str:
        """Return the table with aligned columns, as on the terminal."""
        return text_table(self.headers, self._shown(), ruled=True)

    def markdown(self) -> str:
        return markdown_table(self.headers, self._exact())

    def csv(self) -> str:
        """Return comma-separated values as in RFC 4180."""
        file = io.StringIO()
        csv.writer(file).writerows([self.headers, *self._exact()])
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
        for row in self._shown():
            table.add_row(*map(escape, row))
        console.print(table)

    def _exact(self) -> list[list[str]]:
        return [["" if cell is None else str(cell) for cell in row] for row in self.rows]

    def _shown(self) -> list[list[str]]:
        return [[_short(*column) for column in zip(self.headers, row, strict=True)] for row in self.rows]


def _short(column: str, cell: Cell) -> str:
    if isinstance(cell, float):
        return significant(cell)
    text = "" if cell is None else str(cell)
    match column:
        case "run_dir":
            return os.path.basename(text)
        case "mlflow_run_id":
            return text[:_ID_LENGTH]
        case "error":
            return text if len(text) <= _ERROR_LENGTH else text[: _ERROR_LENGTH - 3] + "..."
        case _:
            return text


def typed(name: str) -> str:
    """Return the name of a key or metric as a Python identifier, for columns: "test/loss" becomes "test_loss"."""
    return re.sub(r"\W", "_", name)


def sweep_table(outcomes: Sequence[Outcome], monitor: Monitor) -> SweepTable:
    """Return a table with a row for each job: number, swept values, metrics of the kept network, status, directory.

    The kept network is the one of the best checkpoint if the run keeps a best checkpoint, otherwise of the last step.
    Jobs are sorted by the metric of ``monitor``, then by the loss on the same split; jobs that did not finish come
    last. Metrics that no job has are left out. If no job has an error, the column of errors is left out.
    """
    swept = swept_values(outcomes)
    keys = list(dict.fromkeys(key for values in swept for key in values))
    metrics = shown_metrics(outcomes, monitor)
    errors = ("error",) if any(outcome.error for outcome in outcomes) else ()
    headers = ("job", *keys, *metrics, "step_time_ms", "status", *errors, "run_dir", "mlflow_run_id")
    jobs = sorted(zip(outcomes, swept, strict=True), key=lambda job: rank(job[0].complete, job[0].metrics, monitor))
    rows = tuple(
        (
            job.number,
            *(shown_value(values, key) for key in keys),
            *(job.metrics.get(name) for name in metrics),
            step_milliseconds(job),
            job.status,
            *(error_text(job) for _ in errors),
            job.directory,
            job.mlflow_run_id,
        )
        for job, values in jobs
    )
    return SweepTable(tuple(map(typed, headers)), rows)


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
    """Return the names of the jobs' metrics, the metric of ``monitor`` first; leave out other validation metrics."""
    known = dict.fromkeys(name for outcome in outcomes for name in outcome.metrics)
    names = dict.fromkeys((monitor.metric, *(name for name in in_order(known) if not name.startswith("val/"))))
    return [name for name in names if name in known]


def rank(finished: bool, metrics: Mapping[str, float], monitor: Monitor) -> tuple[bool, float, float]:
    """Return the sort key of a job: finished jobs first, then the best monitored value, then the lowest loss.

    Unknown values come last. The loss is the loss on the monitored split, so that the test split does not decide
    between equal validation accuracies.
    """
    value = metrics.get(monitor.metric, math.nan)
    signed = -value if monitor.highest else value
    loss = metrics.get(_loss_of_split(monitor), metrics.get("test/loss", math.nan))
    return (not finished, math.inf if math.isnan(signed) else signed, math.inf if math.isnan(loss) else loss)


def _loss_of_split(monitor: Monitor) -> str:
    return f"{monitor.metric.partition('/')[0]}/loss"


def step_milliseconds(outcome: Outcome) -> float | None:
    """Return the median step time of a job in milliseconds; None if it is unknown."""
    median = None if outcome.summary is None else outcome.summary.step_time_s.get("median")
    return None if median is None else median * 1000


def error_text(outcome: Outcome) -> str:
    """Return the error of a job on one line; "" if it has none."""
    error = outcome.error
    return "" if error is None else f"{error.class_name}: {' '.join(error.message.split())}"


def _overrides(outcome: Outcome) -> dict[str, str]:
    pairs = (override.partition("=") for override in outcome.overrides)
    return {key.lstrip("+~"): value for key, _, value in pairs}


@dataclass(frozen=True)
class OverSeeds:
    """A group of jobs that differ only in their seed. Means and spreads are over finished jobs only."""

    swept: Mapping[str, str]
    outcomes: Sequence[Outcome]

    @property
    def finished(self) -> list[Outcome]:
        """The jobs that reached their last step without divergence."""
        return [outcome for outcome in self.outcomes if outcome.complete]

    def values(self, metric: str) -> list[float]:
        """Return the values of a metric, one for each finished job that has it."""
        return [outcome.metrics[metric] for outcome in self.finished if metric in outcome.metrics]

    @property
    def status(self) -> str:
        """The status if all jobs finished with the same status; otherwise the number of jobs with each status."""
        counts = Counter(outcome.status for outcome in self.outcomes)
        if len(counts) == 1 and self.finished:
            return next(iter(counts))
        return ", ".join(f"{count} {status}" for status, count in counts.items())


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


def seeds_table(groups: Sequence[OverSeeds], monitor: Monitor, *, narrow: bool = False) -> SweepTable:
    """Return a table with a row for each group: swept values, n (finished jobs), metrics, step time, status.

    The table has the mean and the standard deviation (sd) of each metric, in separate columns for programs. narrow: put
    both into one cell, ``mean ± sd``, for human readers.
    """
    keys = list(dict.fromkeys(key for group in groups for key in group.swept))
    metrics = shown_metrics([outcome for group in groups for outcome in group.outcomes], monitor)
    errors = [next(filter(None, map(error_text, group.outcomes)), "") for group in groups]
    ends = ("",) if narrow else ("_mean", "_sd")
    headers = (*keys, "n", *(f"{name}{end}" for name in metrics for end in ends), "step_time_ms", "status")
    rows = tuple(
        (
            *(shown_value(group.swept, key) for key in keys),
            len(group.finished),
            *(cell for name in metrics for cell in _mean_and_spread(group.values(name), narrow)),
            mean_of([time for job in group.finished if (time := step_milliseconds(job)) is not None]),
            group.status,
            *([error] if any(errors) else []),
        )
        for group, error in zip(groups, errors, strict=True)
    )
    return SweepTable((*map(typed, headers), *(["error"] if any(errors) else [])), rows)


def _mean_and_spread(values: Sequence[float], narrow: bool) -> tuple[Cell, ...]:
    mean, spread = mean_of(values), spread_of(values)
    if narrow and mean is not None and spread is not None:
        return (f"{significant(mean)} ± {significant(spread)}",)
    return (mean,) if narrow else (mean, spread)


def _means(group: OverSeeds, monitor: Monitor) -> dict[str, float]:
    means = {name: mean_of(group.values(name)) for name in (monitor.metric, _loss_of_split(monitor), "test/loss")}
    return {name: mean for name, mean in means.items() if mean is not None}
