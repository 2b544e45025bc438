"""Text for terminals and logs: escaped text of other processes, and tables.

Names and messages from another process, and lines from a worker's log, may contain terminal escape sequences,
right-to-left overrides or a megabyte without a newline. This module escapes and shortens such texts.
"""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any


def printable(text: str, limit: int = 120) -> str:
    """Return the first ``limit`` characters of ``text`` as one line, with unprintable characters escaped."""
    if len(text) <= limit and text.isprintable():
        return text
    cut = text[:limit]
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)
    return escaped if len(text) <= limit else f"{escaped}... ({len(text)} characters)"


def printable_lines(text: str, lines: int, width: int = 200) -> list[str]:
    """Return the last ``lines`` lines of ``text``, each escaped by :func:`printable`; tabs become spaces."""
    return [printable(line.expandtabs(4), width) for line in text.splitlines()[-lines:]]


def ascii_only(text: str) -> str:
    """Return ``text`` with non-ASCII characters escaped, so that each character is one byte. Newlines are kept."""
    return text.encode("ascii", "backslashreplace").decode("ascii")


def json_text(document: Any) -> str:
    """Return plain data as JSON with a final newline; a float that is not finite becomes "nan", "inf" or "-inf"."""

    def written(value: Any) -> Any:
        match value:
            case dict():
                return {key: written(each) for key, each in value.items()}
            case list() | tuple():
                return [written(each) for each in value]
            case float() if not math.isfinite(value):
                return str(value)
        return value

    return json.dumps(written(document), indent=1, allow_nan=False) + "\n"


def text_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, ruled: bool = False) -> str:
    """Return a table with text aligned to the left and numbers to the right. ruled: draw a line below the headers."""
    body = [tuple(row) for row in rows]
    columns = list(zip(headers, *body, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [all(cell.removeprefix("-")[:1].isdigit() for cell in column[1:]) for column in columns]
    rule = [tuple("-" * width for width in widths)] if ruled else []
    return "\n".join(
        "  ".join(
            cell.rjust(w) if right else cell.ljust(w) for cell, w, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in (tuple(headers), *rule, *body)
    )


def aligned(facts: Iterable[tuple[str, str]]) -> str:
    """Return a line for each (name, value), with the values in one column."""
    pairs = list(facts)
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in pairs)


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in GitHub-flavoured Markdown."""
    lines = (headers, ["---"] * len(headers), *rows)
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def significant(value: float) -> str:
    """Return a number with four significant digits, as a metric is shown on the terminal."""
    return f"{value:.4g}"


def rate(per_s: float) -> str:
    """Return a rate: whole and with thousands separators from 1,000 on, else with four significant digits."""
    return number(round(per_s)) if math.isfinite(per_s) and per_s >= 999.95 else significant(per_s)


def duration(seconds: float) -> str:
    """Return a rough duration: seconds below two minutes, then minutes, then hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def number(count: int) -> str:
    """Return a count with thousands separators."""
    return f"{count:,}"


def mean_number(count: float) -> str:
    """Return a mean of counts as text, with thousands separators, and with decimals if it is not a whole number."""
    return number(round(count)) if math.isclose(count, round(count)) else f"{count:,.2f}"
