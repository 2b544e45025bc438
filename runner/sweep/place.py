"""Where a job stands in its sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class SweepPlace:
    """What a run knows of the sweep it is a job of.

    directory: of the whole sweep, absolute. number: of the job, from 0. swept: key -> value, as text, of the
    overrides that the sweep varies. cards: those of the machine that it was dealt, in words, "" where it was not dealt
    any.
    """

    directory: Path
    number: int
    swept: Mapping[str, str] = field(default_factory=dict)
    cards: str = ""
