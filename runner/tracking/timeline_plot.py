"""The picture of a timeline: a row for each device and link."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.tracking.plots import new_figure, save_figure

MOST_ROWS = 48
"""Largest number of drawn rows; the others are left out, and the title names their number."""

_COLOURS = ("tab:blue", "tab:orange", "tab:purple", "tab:green", "tab:red", "tab:gray", "tab:brown")

Bars = Sequence[tuple[str, float, float]]
"""The bars of a row: kind, begin and duration in milliseconds."""


def draw_timeline(rows: Mapping[str, Bars], out_path: Path) -> Path:
    """Draw rows of bars over time, with a colour for each kind; return ``out_path``. rows: label -> bars."""
    shown = dict(list(rows.items())[:MOST_ROWS])
    kinds = list(dict.fromkeys(kind for bars in shown.values() for kind, _, _ in bars))
    colour = {kind: _COLOURS[number % len(_COLOURS)] for number, kind in enumerate(kinds)}
    figure = new_figure(10, 1.5 + 0.25 * len(shown))
    axes = figure.add_subplot(1, 1, 1)
    for kind in kinds:
        label = kind
        for place, bars in enumerate(shown.values()):
            spans = [(begin, length) for of, begin, length in bars if of == kind]
            if spans:
                axes.broken_barh(spans, (place - 0.4, 0.8), facecolors=colour[kind], label=label)
                label = ""  # one entry of the legend for each kind
    axes.set_yticks(range(len(shown)), list(shown), fontsize=7)
    axes.invert_yaxis()
    axes.set(xlabel="time, ms", title="" if len(shown) == len(rows) else f"{len(rows) - len(shown)} rows are left out")
    axes.legend(fontsize=7, ncols=len(kinds) or 1, loc="lower left", bbox_to_anchor=(0, 1.0), frameon=False)
    return save_figure(figure, out_path)
