"""How stale pushes were: as picture and as table."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.tracking.plots import new_figure, save_figure

Counts = Sequence[Mapping[str, int]]
"""For each parameter server, staleness as text -> pushes."""


def staleness_table(counts: Counts, path: Path) -> Path:
    """Write how many pushes came with which staleness as CSV and return ``path``; its folder is made.

    A row for each staleness from 0 to the largest, and a column for each server.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["staleness", *_names(counts)])
        writer.writerows([staleness, *row] for staleness, row in enumerate(_rows(counts)))
    return path


def staleness_histogram(counts: Counts, path: Path) -> Path:
    """Draw how many pushes came with which staleness and return ``path``."""
    rows, names = _rows(counts), _names(counts)
    figure = new_figure(7, 4)
    axes = figure.add_subplot()
    width = 0.8 / max(1, len(counts))
    for number, name in enumerate(names):
        offset = (number - (len(counts) - 1) / 2) * width
        axes.bar([place + offset for place in range(len(rows))], [row[number] for row in rows], width, label=name)
    axes.set(title="staleness of pushes", xlabel="pushes applied since the fetch", ylabel="pushes")
    if names:
        axes.legend()
    return save_figure(figure, path)


def _rows(counts: Counts) -> list[list[int]]:
    largest = max((int(staleness) for each in counts for staleness in each), default=0)
    return [[each.get(str(staleness), 0) for each in counts] for staleness in range(largest + 1)]


def _names(counts: Counts) -> list[str]:
    return [f"server {number}" for number in range(len(counts))]
