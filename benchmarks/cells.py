"""Markdown pages and tables, and the formats of their numbers."""

import argparse
import datetime
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.environments import ROOT
from benchmarks.results import quartiles
from runner.records.summary import cpu_model, git_commit

NOTHING = "-"
"""The cell of a value that was not measured."""


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. The first column is aligned left, for text, and the others right, for numbers."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def milliseconds(seconds: float | None) -> str:
    """Return seconds as text in milliseconds: rounded to whole ms from 100 ms, to three significant digits below."""
    if seconds is None:
        return NOTHING
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def spread(seconds: Sequence[float]) -> str:
    """Return the median and, in parentheses, the quartiles as text in milliseconds."""
    low, high = quartiles(seconds)
    return f"{milliseconds(statistics.median(seconds))} ({milliseconds(low)}-{milliseconds(high)})"


def ratio(value: float | None, of: float | None) -> str:
    """Return the ratio of two values as text, or :data:`NOTHING` if one of them is unknown."""
    return NOTHING if value is None or of is None else f"{value / of:.2f}"


def origin(cpu: str, **more: str) -> dict[str, str]:
    """Return facts about a measurement by name: the CPU, of which ``cpu`` states the use, commit, date, and others."""
    today = str(datetime.datetime.now(tz=datetime.UTC).date())
    return {"CPU": f"{cpu_model()}, {cpu}", "commit": git_commit(ROOT) or NOTHING, "date": today, **more}


def command_line(parser: argparse.ArgumentParser, given: argparse.Namespace) -> str:
    """Return a command as Markdown, with all its options except ``--output``, also those that have default values."""
    words = []
    for name, value in vars(given).items():
        if name != "output" and value is not None and value is not False:
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return f"`{parser.prog} {shlex.join(words)}`"


def listed(facts: Mapping[str, str]) -> str:
    """Return facts by name as a Markdown list."""
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def document(*parts: str) -> str:
    """Return a page of Markdown whose parts are separated by empty lines."""
    return "\n\n".join(parts) + "\n"


def publish(page: str, output: Path | None) -> None:
    """Print a page, and write it to a file if one is given."""
    if output is not None:
        output.write_text(page)
    print(page, end="")
