"""Pictures of a run, drawn without a display."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from runner.tracking.metrics_log import read_metrics
from runner.tracking.records import Metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 120
_QUANTITIES = ("loss", "accuracy")
_SPLITS = ("train", "val", "test")
# Above these numbers of classes the text of a confusion matrix no longer fits its cells, or its axes.
_MOST_NUMBERED = 20
_MOST_NAMED = 40


def learning_curves(metrics_path: Path, out_path: Path) -> Path:
    """Draw loss and accuracy over the steps, one line per split, from a metrics.jsonl; return ``out_path``.

    Raises ValueError when the file is no metrics.jsonl.
    """
    records = list(read_metrics(metrics_path))
    figure = new_figure(10, 4)
    for place, quantity in enumerate(_QUANTITIES, start=1):
        axes = figure.add_subplot(1, len(_QUANTITIES), place)
        for split in _SPLITS:
            _draw_curve(axes, records, f"{split}/{quantity}", split)
        axes.set(title=quantity, xlabel="step")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    return save_figure(figure, out_path)


def confusion_matrix(counts: NDArray[np.integer], classes: Sequence[str], out_path: Path) -> Path:
    """Draw a confusion matrix and return ``out_path``.

    counts: (C, C) integers, ``counts[i, j]`` examples of class i that were taken for class j. Cells are
    coloured by their share of the row. Raises ValueError unless there is one name per class.
    """
    counts = np.asarray(counts)
    if counts.shape != (len(classes), len(classes)):
        expected = (len(classes), len(classes))
        raise ValueError(f"confusion matrix of shape {counts.shape}: expected {expected}, one name per class")
    side = min(12.0, max(5.0, 2.5 + 0.4 * len(classes)))
    figure = new_figure(side, side)
    axes = figure.add_subplot()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    right, total = int(np.trace(counts)), int(counts.sum())
    axes.set(title=f"{right} of {total} right", xlabel="predicted class", ylabel="true class")
    if len(classes) <= _MOST_NAMED:
        axes.set_xticks(range(len(classes)), classes, rotation=90 if max(map(len, classes)) > 2 else 0)
        axes.set_yticks(range(len(classes)), classes)
    if len(classes) <= _MOST_NUMBERED:
        _number_cells(axes, counts, shares)
    return save_figure(figure, out_path)


def _draw_curve(axes: Axes, records: Iterable[Metrics], key: str, label: str) -> None:
    """One line; values that are not finite leave a gap."""
    points = [(record.step, record.values[key]) for record in records if key in record.values]
    if points:
        steps, values = zip(*points, strict=True)
        # A split scored a few times only shows where.
        marker = "o" if len(points) <= 50 else None
        gaps = [value if math.isfinite(value) else math.nan for value in values]
        axes.plot(steps, gaps, label=label, marker=marker, markersize=3, linewidth=1.2)


def _number_cells(axes: Axes, counts: NDArray[np.integer], shares: NDArray[np.float64]) -> None:
    for (row, column), count in np.ndenumerate(counts):
        if count:
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8)


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """An empty picture."""
    # A figure made this way draws with Agg and leaves pyplot's global state, and any display, alone.
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches), dpi=_DPI, layout="constrained")


def save_figure(figure: Figure, out_path: Path) -> Path:
    """Write a picture as PNG and return ``out_path``; folders are made."""
    out_path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out_path, format="png")
    return out_path
