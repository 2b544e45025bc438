"""Plots and tables of a run, a sweep and an adaptation; drawing requires no display."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runner.tracking.metrics_log import read_metrics
from runner.tracking.records import Metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 120
_AXES = {"loss": "loss (mean per example)", "accuracy": "accuracy (fraction of examples)"}
"""Metric -> label of the axis, if the label is not the name of the metric."""
_MOST_CURVES = 4
_TRAIN = "tab:blue"
_SCORED = {"val": "tab:green", "test": "tab:orange"}  # split that evaluations score -> its colour
Point = tuple[int, float]  # a step, and the value of a metric

# Maximum numbers of classes for which a confusion matrix has counts in its cells and class names along its axes.
_MOST_NUMBERED = 20
_MOST_NAMED = 40
_RECALL_INCHES, _BAR = 1.8, "#9ecae1"


def learning_curves(metrics_path: Path, out_path: Path) -> Path:
    """Draw the loss and other metrics over the steps, a line per split, from a metrics.jsonl; return ``out_path``.

    A logged training metric describes one batch, so it is not comparable with the score of a whole split. Single values
    are therefore drawn faintly, and their mean since the previous evaluation is drawn at the step of each evaluation.
    Raises ValueError if the file is not a metrics.jsonl.
    """
    records = list(read_metrics(metrics_path))
    quantities = _quantities(records)
    figure = new_figure(5 * len(quantities), 4)
    for axes, quantity in zip(figure.subplots(1, len(quantities), squeeze=False)[0], quantities, strict=True):
        single, mean = _points(records, f"train/{quantity}"), training_means(records, quantity)
        _draw_curve(axes, single, "train, single batches", color=_TRAIN, alpha=0.3)
        _draw_curve(axes, mean, "train, mean since the last evaluation", color=_TRAIN)
        for split, colour in _SCORED.items():
            _draw_curve(axes, _points(records, f"{split}/{quantity}"), f"{split}, whole split", color=colour)
        axes.set(xlabel="step (updates)", ylabel=_AXES.get(quantity, quantity))
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=8)
    return save_figure(figure, out_path)


def _quantities(records: Iterable[Metrics]) -> list[str]:
    """Return the names of at most four metrics that evaluations score, the loss first."""
    scored = (name.partition("/") for record in records for name in record.values)
    return list(dict.fromkeys(["loss", *(name for split, _, name in scored if split in _SCORED)]))[:_MOST_CURVES]


def training_means(records: Iterable[Metrics], quantity: str) -> list[Point]:
    """Return a point for each evaluation: its step, and the mean of a training metric since the previous evaluation.

    quantity: metric, such as "loss". An evaluation without a value since the previous evaluation has no point.
    """
    found, since = list[Point](), list[float]()
    for record in records:
        if (name := f"train/{quantity}") in record.values:
            since.append(record.values[name])
        if since and any(f"{split}/{quantity}" in record.values for split in _SCORED):
            found.append((record.step, sum(since) / len(since)))
            since.clear()
    return found


def confusion_matrix(counts: NDArray[np.integer], classes: Sequence[str], out_path: Path) -> Path:
    """Draw a confusion matrix, and the recall of each class next to its row; return ``out_path``.

    counts: (C, C) integers; ``counts[i, j]`` is the number of examples of class i that were classified as class j. The
    colour of a cell is its fraction of the sum of its row; on the diagonal, this fraction is the recall of the class.
    classes: the name of each class.
    """
    side = min(12.0, max(5.0, 2.5 + 0.4 * len(classes)))
    figure = new_figure(side + _RECALL_INCHES, side)
    axes, bars = figure.subplots(1, 2, sharey=True, width_ratios=(side, _RECALL_INCHES))
    totals = counts.sum(axis=1)
    shares = counts / np.maximum(totals, 1)[:, np.newaxis]
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    right, total = int(np.trace(counts)), int(totals.sum())
    axes.set(title=f"{right} of {total} correct (colour: fraction of the row)")
    axes.set(xlabel="predicted class", ylabel="true class")
    recalls = np.where(totals > 0, np.diag(shares), np.nan)
    bars.barh(range(len(classes)), np.nan_to_num(recalls), color=_BAR)
    bars.set(xlim=(0.0, 1.0), xlabel="recall (fraction)", title="recall")
    bars.grid(alpha=0.3, axis="x")
    if len(classes) <= _MOST_NAMED:
        axes.set_xticks(range(len(classes)), classes, rotation=90 if max(map(len, classes)) > 2 else 0)
        axes.set_yticks(range(len(classes)), classes)
    if len(classes) <= _MOST_NUMBERED:
        _number_cells(axes, counts, shares)
        for place, recall in enumerate(recalls):
            text = "no example" if math.isnan(recall) else f"{recall:.1%}"
            bars.text(0.03, place, text, va="center", fontsize=8, in_layout=False)
    return save_figure(figure, out_path)


def _points(records: Iterable[Metrics], key: str) -> list[Point]:
    return [(record.step, record.values[key]) for record in records if key in record.values]


def _draw_curve(axes: "Axes", points: Sequence[Point], label: str, **style: Any) -> None:
    """Draw a curve with gaps at values that are not finite; draw nothing if there are no points."""
    if points:
        steps, values = zip(*points, strict=True)
        # Mark the points if they are few.
        marker = "o" if len(points) <= 50 else None
        gaps = [value if math.isfinite(value) else math.nan for value in values]
        axes.plot(steps, gaps, label=label, marker=marker, markersize=3, linewidth=1.2, **style)


def _number_cells(axes: "Axes", counts: NDArray[np.integer], shares: NDArray[np.float64]) -> None:
    for (row, column), count in np.ndenumerate(counts):
        if count:
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8, in_layout=False)


_MOST_LABELLED = 8
_LOG_RATIO = 50.0
"""Positive values whose largest and smallest differ by at least this factor are drawn on a logarithmic axis."""

Series = dict[str, dict[str, list[float]]]
"""Label of a line -> value of the key, as text -> values of the metric, one for each repetition."""


def metric_over_keys(panels: Mapping[str, Series], metric: str, out_path: Path) -> Path:
    """Draw a metric over each key, one panel per key, and return ``out_path``.

    panels: key -> lines. A point is the mean over repetitions; an error bar is the sample standard deviation.
    """
    figure = new_figure(5.0 * len(panels), 4.0)
    for axes, (key, series) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        _draw_lines(axes, series)
        axes.set(xlabel=key, ylabel=metric)
        axes.grid(alpha=0.3)
    return save_figure(figure, out_path)


def speedup_lines(lines: Mapping[str, Sequence[Point]], out_path: Path) -> Path:
    """Draw speedups over numbers of workers next to the ideal line, and return ``out_path``.

    lines: label -> (workers, speedup), in the order of workers.
    """
    figure = new_figure(5.0, 4.0)
    axes = figure.add_subplot(1, 1, 1)
    ideal = sorted({workers for points in lines.values() for workers, _ in points})
    axes.plot(ideal, ideal, "--", color="tab:gray", label="ideal")
    for label, points in lines.items():
        _draw_curve(axes, points, label or "simulated")
    axes.set(xlabel="workers", ylabel="speedup over one worker")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return save_figure(figure, out_path)


def _draw_lines(axes: "Axes", series: Series) -> None:
    texts = list(dict.fromkeys(text for points in series.values() for text in points))
    numbers = {text: _number(text) for text in texts}
    if any(math.isnan(number) for number in numbers.values()):
        numbers = {text: float(place) for place, text in enumerate(texts)}
        axes.set_xticks(range(len(texts)), texts)
    elif min(numbers.values()) > 0 and max(numbers.values()) >= _LOG_RATIO * min(numbers.values()):
        axes.set_xscale("log")
    for label, points in series.items():
        ordered = sorted(points, key=numbers.__getitem__)
        means = [float(np.mean(points[text])) for text in ordered]
        spreads = [float(np.std(points[text], ddof=1)) if len(points[text]) > 1 else 0.0 for text in ordered]
        x = [numbers[text] for text in ordered]
        axes.errorbar(x, means, spreads, label=label, marker="o", markersize=3, capsize=2)
    if 1 < len(series) <= _MOST_LABELLED:
        axes.legend(fontsize=7)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def new_figure(width_inches: float, height_inches: float) -> "Figure":
    # Unlike pyplot, this constructor has no global state and needs no display: the figure is drawn with Agg.
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches), dpi=_DPI, layout="constrained")


def save_figure(figure: "Figure", out_path: Path) -> Path:
    """Write a picture as PNG, create missing folders, and return ``out_path``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    out_path.parent.mkdir(parents=True, exist_ok=True)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(out_path)  # ``savefig`` would draw the figure twice
    return out_path


Counts = Sequence[Mapping[str, int]]
"""For each parameter server: staleness (pushes applied since the worker's fetch), as text -> number of pushes."""


def staleness_table(counts: Counts, path: Path) -> Path:
    """Write the number of pushes for each staleness as CSV, create missing folders, and return ``path``.

    There is a row for each staleness from 0 to the largest, and a column for each server.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["staleness", *_names(counts)])
        writer.writerows([staleness, *row] for staleness, row in enumerate(_rows(counts)))
    return path


def staleness_histogram(counts: Counts, path: Path) -> Path:
    """Draw the number of pushes for each staleness and return ``path``."""
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


_INCHES_PER_LAYER = 0.25


def divergence_plot(divergence: Mapping[str, Mapping[str, float]], out_path: Path) -> Path:
    """Draw the divergence of two domains at each layer, one line for each network; return ``out_path``.

    divergence: name of a network -> layer -> nats.
    """
    layers = list(next(iter(divergence.values())))
    figure = new_figure(max(6.0, 2 + _INCHES_PER_LAYER * len(layers)), 4.5)
    axes = figure.add_subplot()
    for network, values in divergence.items():
        axes.plot(range(len(layers)), [values[layer] for layer in layers], marker="o", markersize=3, label=network)
    axes.set_xticks(range(len(layers)), layers, rotation=90, fontsize=7)
    axes.set(ylabel="symmetric divergence (nats, mean over neurons)", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return save_figure(figure, out_path)


def target_batches_plot(curve: Mapping[int, Mapping[str, float]], before: Mapping[str, float], out_path: Path) -> Path:
    """Draw metrics over the number of target batches, next to the values before the adaptation; return ``out_path``.

    curve: number of batches -> metric -> value.
    """
    metrics = list(before)
    figure = new_figure(5 * len(metrics), 4)
    for axes, metric in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
        axes.plot(list(curve), [scores[metric] for scores in curve.values()], marker="o", label="adabn")
        axes.axhline(before[metric], color="tab:gray", linestyle="--", label="source")
        axes.set(xlabel="batches of the target", ylabel=metric, xscale="log")
        axes.set_xticks(list(curve), [str(batches) for batches in curve])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return save_figure(figure, out_path)
