"""The jobs of a sweep side by side: best first, failed ones at the end with their error."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from runner.records.summary import Summary

_METRICS = ("test/accuracy", "test/loss", "train/loss")
_ERROR_LENGTH = 60


@dataclass(frozen=True)
class SweepTable:
    """A table as text: column headers and rows of as many cells each."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self) -> str:
        """Columns aligned with spaces."""
        widths = [max(map(len, column)) for column in zip(self.headers, *self.rows, strict=True)]
        lines = [self.headers, tuple("-" * width for width in widths), *self.rows]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )

    def markdown(self) -> str:
        """A table of GitHub-flavoured Markdown."""
        lines = [self.headers, tuple("---" for _ in self.headers), *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    def csv(self) -> str:
        """Comma-separated values as in RFC 4180."""
        file = io.StringIO()
        csv.writer(file).writerows([self.headers, *self.rows])
        return file.getvalue()

    def print(self) -> None:
        """Show the table on standard output, with lines and bold headers where it is a terminal."""
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


def sweep_table(summaries: Sequence[Summary]) -> SweepTable:
    """One row a job: swept values, best test accuracy and other metrics, step time, status.

    Jobs are sorted by best test accuracy (lowest test loss where nothing is classified); jobs that did not
    finish come last, with their error. Columns no job has a value for are left out.
    """
    swept = swept_values(summaries)
    keys = list(dict.fromkeys(key for values in swept for key in values))
    metrics = [name for name in _METRICS if any(name in summary.best for summary in summaries)]
    headers = (*keys, *(f"best {name}" for name in metrics), "step time (ms)", "status")
    order = sorted(range(len(summaries)), key=lambda job: _rank(summaries[job]))
    rows = tuple(
        (
            *(swept[job].get(key, "") for key in keys),
            *(_number(summaries[job].best.get(name), 4) for name in metrics),
            _milliseconds(summaries[job]),
            _status(summaries[job]),
        )
        for job in order
    )
    return SweepTable(headers, rows)


def swept_values(summaries: Sequence[Summary]) -> list[dict[str, str]]:
    """For each job the overrides that are not the same in all of them; of a single job, all."""
    jobs = [_overrides(summary) for summary in summaries]
    if len(jobs) < 2:
        return jobs
    return [{key: value for key, value in job.items() if any(o.get(key) != value for o in jobs)} for job in jobs]


def _overrides(summary: Summary) -> dict[str, str]:
    pairs = (override.partition("=") for override in summary.overrides)
    return {key.lstrip("+~"): value for key, _, value in pairs}


def _rank(summary: Summary) -> tuple[bool, float, float]:
    """Sort key: finished first, then high accuracy, then low loss; an unknown one counts as the worst."""
    accuracy = summary.best.get("test/accuracy", math.nan)
    loss = summary.best.get("test/loss", math.nan)
    return (
        summary.status != "finished",
        math.inf if math.isnan(accuracy) else -accuracy,
        math.inf if math.isnan(loss) else loss,
    )


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _milliseconds(summary: Summary) -> str:
    median = summary.step_time_s.get("median")
    return "" if median is None else f"{median * 1000:.2f}"


def _status(summary: Summary) -> str:
    if summary.error is None:
        return summary.status
    text = f"{summary.status}: {summary.error.class_name}: {' '.join(summary.error.message.split())}"
    return text if len(text) <= _ERROR_LENGTH else text[: _ERROR_LENGTH - 3] + "..."
