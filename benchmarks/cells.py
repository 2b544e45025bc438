"""Tables of Markdown, and numbers as they stand in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NOTHING = "-"
"""In a cell of what was not measured."""


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column is text, the others are numbers."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds, with as many digits as mean something."""
    if seconds is None:
        return NOTHING
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratio(value: float | None, of: float | None) -> str:
    """One over another, where both are known."""
    return NOTHING if value is None or of is None else f"{value / of:.2f}"
