"""Tables for terminals and logs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def text_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Align columns with spaces: text to the left, columns of numbers to the right."""
    cells = [tuple(headers), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [all(c[:1].isdigit() for c in column[1:]) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(w) if right else cell.ljust(w) for cell, w, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    )


def number(count: int) -> str:
    """A count with its thousands apart."""
    return f"{count:,}"


def mean_number(count: float) -> str:
    """A mean count, with decimals only where it is not whole."""
    return number(round(count)) if math.isclose(count, round(count)) else f"{count:,.2f}"
