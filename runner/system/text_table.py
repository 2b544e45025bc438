"""Tables for terminals and logs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def text_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, ruled: bool = False) -> str:
    """Align columns with spaces: text to the left, columns of numbers to the right. ruled: a line below the headers."""
    body = [tuple(row) for row in rows]
    columns = list(zip(headers, *body, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [all(cell[:1].isdigit() for cell in column[1:]) for column in columns]
    rule = [tuple("-" * width for width in widths)] if ruled else []
    return "\n".join(
        "  ".join(
            cell.rjust(w) if right else cell.ljust(w) for cell, w, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in (tuple(headers), *rule, *body)
    )


def number(count: int) -> str:
    """A count with its thousands apart."""
    return f"{count:,}"


def mean_number(count: float) -> str:
    """A mean count, with decimals only where it is not whole."""
    return number(round(count)) if math.isclose(count, round(count)) else f"{count:,.2f}"
