"""Markdown tables and the formats of their numbers."""

from collections.abc import Iterable, Sequence

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


def ratio(value: float | None, of: float | None) -> str:
    """Return the ratio of two values as text, or :data:`NOTHING` if one of them is unknown."""
    return NOTHING if value is None or of is None else f"{value / of:.2f}"
