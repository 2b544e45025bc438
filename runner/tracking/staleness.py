"""How stale pushes were: a histogram as picture and as table."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.tracking.plots import new_figure, save_figure


def staleness_histogram(counts: Sequence[Mapping[str, int]], picture: Path, table: Path) -> tuple[Path, Path]:
    """Draw and write how many pushes came with which staleness; return ``picture`` and ``table``.

    counts: for each parameter server, staleness as text -> pushes. The table is CSV, with a row for each staleness from
    0 to the largest and a column for each server.
    """
    largest = max((int(staleness) for each in counts for staleness in each), default=0)
    rows = [[each.get(str(staleness), 0) for each in counts] for staleness in range(largest + 1)]
    names = [f"server {number}" for number in range(len(counts))]
    figure = new_figure(7, 4)
    axes = figure.add_subplot()
    width = 0.8 / max(1, len(counts))
    for number, name in enumerate(names):
        offset = (number - (len(counts) - 1) / 2) * width
        axes.bar([place + offset for place in range(largest + 1)], [row[number] for row in rows], width, label=name)
    axes.set(title="staleness of pushes", xlabel="pushes applied since the fetch", ylabel="pushes")
    if names:
        axes.legend()
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["staleness", *names])
        writer.writerows([staleness, *row] for staleness, row in enumerate(rows))
    return save_figure(figure, picture), table
