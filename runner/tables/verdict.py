"""The comparison of our values with a published value, and the parsing of printed numbers."""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

from runner.system.schema import OneOf
from runner.tables.statistics import Sample, against_published

CONFIDENCES = {
    "S": "read in the paper",
    "P": "read in another public text or in code",
    "P2": "read in a summary by others",
    "C": "computed from a published specification",
    "D": "deduced from published facts",
    "R": "recalled, not confirmed",
}
"""Code of the confidence in a published value -> its meaning."""

STATED, DERIVED = ("S", "P"), ("C", "D")
"""Confidences of values that a paper or its authors state, and of values that follow from their statements."""

ROUNDING = "rounding"
"""The value of ``tolerance`` that stands for half a unit of the last printed digit."""

PASSES, FAILS, AGREES, DIFFERS, CONTEXT = "passes", "fails", "agrees", "differs", ""
"""Verdicts. Our value passes or fails against a stated value, and agrees with or differs from a derived value."""

_OF_DERIVED = {PASSES: AGREES, FAILS: DIFFERS}

_PRINTED = re.compile(r"(-?\d+(?:,\d{3})*(?:\.\d+)?)\s*(ms|[KMG%]?)")
_UNITS = {
    "": Decimal(1),
    "K": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "%": Decimal("0.01"),
    "ms": Decimal("0.001"),
}


@dataclass(frozen=True)
class Published:
    """A published value.

    printed: the number as the source prints it, such as "10.2 M". paper: the source. where: the place in the source.
    confidence: one of :data:`CONFIDENCES`. tolerance: :data:`ROUNDING`, a number in the unit of ``printed`` such as
    "0.5", or a relative one such as "2 %"; "" for a value that is shown as context and decides nothing.
    """

    printed: str
    paper: str
    confidence: Annotated[str, OneOf(tuple(CONFIDENCES))]
    where: str = ""
    tolerance: str = ""


def number_of(printed: str) -> Decimal:
    """Return a number such as "1,234", "10.2 M", "43.2 %" (0.432) or "81 ms" (0.081). Raises ValueError otherwise."""
    digits, unit = _parsed(printed)
    return Decimal(digits) * _UNITS[unit]


def tolerance_of(published: Published) -> Decimal | None:
    """Return the absolute tolerance of a published value; None if it has none. Raises ValueError for invalid text."""
    digits, unit = _parsed(published.printed)
    if not published.tolerance:
        return None
    if published.tolerance == ROUNDING:
        last = Decimal(1).scaleb(-len(digits.partition(".")[2]))
        return last * _UNITS[unit] / 2
    try:
        number, of_value = _parsed(published.tolerance)
    except ValueError:
        number, of_value = "", "?"
    if of_value not in ("", "%") or number.startswith("-"):
        expected = "a number such as '0.5' in the unit of the printed value, or '2 %' of the value"
        raise ValueError(f"tolerance: {published.tolerance!r}, expected {ROUNDING!r}, {expected}")
    return abs(number_of(published.printed)) * Decimal(number) / 100 if of_value else Decimal(number) * _UNITS[unit]


def verdict(sample: Sample, published: Published, statistic: str) -> str:
    """Return the verdict on our values against a published value. statistic: as in :func:`against_published`."""
    tolerance = tolerance_of(published)
    if tolerance is None or published.confidence not in (*STATED, *DERIVED):
        return CONTEXT
    found = against_published(sample, float(number_of(published.printed)), float(tolerance), statistic)
    return found if published.confidence in STATED else _OF_DERIVED.get(found, found)


def _parsed(printed: str) -> tuple[str, str]:
    match = _PRINTED.fullmatch(printed.strip())
    if match is None:
        raise ValueError(f"printed: {printed!r}, expected a number such as '1,234', '10.2 M', '43.2 %' or '81 ms'")
    return match[1].replace(",", ""), match[2]
