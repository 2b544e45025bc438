"""The picture of a sweep: the metric by which its jobs are compared, over each swept key."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.monitor import Monitor
from runner.sweep.outcome import FINISHED, Outcome
from runner.sweep.table import SEED, shown_value, spread_of, swept_values
from runner.tracking.plots import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NAMED = 8
_MOST_PANELS = 6
_LOG_RATIO = 50.0
"""Positive values whose largest and smallest differ at least by this factor are drawn on a logarithmic axis."""

Series = dict[str, dict[str, list[float]]]
"""The other swept values, as text -> value of the key, as text -> values of the metric, one for each seed."""


def draw_sweep(outcomes: Sequence[Outcome], monitor: Monitor, path: Path) -> Path | None:
    """Draw a panel for each swept key, with a line for each combination of the other keys; return ``path``.

    A point is the mean over seeds, with the sample standard deviation as its error bar. Returns None, and draws
    nothing, if no two finished jobs differ in a key.
    """
    finished = [job for job in outcomes if job.status == FINISHED and monitor.metric in job.metrics]
    swept = swept_values(finished) if len(finished) > 1 else []
    names = list(dict.fromkeys(key for values in swept for key in values))
    keys = [key for key in names if key != SEED or len(names) == 1][:_MOST_PANELS]
    if not keys:
        return None
    figure = new_figure(5.0 * len(keys), 4.0)
    for place, key in enumerate(keys, start=1):
        axes = figure.add_subplot(1, len(keys), place)
        _draw_panel(axes, _series(key, swept, [job.metrics[monitor.metric] for job in finished]))
        axes.set(xlabel=key, ylabel=monitor.metric)
        axes.grid(alpha=0.3)
    return save_figure(figure, path)


def _series(key: str, swept: Sequence[Mapping[str, str]], results: Sequence[float]) -> Series:
    found: Series = {}
    for values, result in zip(swept, results, strict=True):
        others = ", ".join(f"{name}={shown_value(values, name)}" for name in values if name not in (key, SEED))
        found.setdefault(others, {}).setdefault(shown_value(values, key), []).append(result)
    return found


def _draw_panel(axes: "Axes", series: Series) -> None:
    texts = list(dict.fromkeys(text for points in series.values() for text in points))
    numbers = {text: _number(text) for text in texts}
    if any(math.isnan(number) for number in numbers.values()):
        numbers = {text: float(place) for place, text in enumerate(texts)}
        axes.set_xticks(range(len(texts)), texts)
    elif min(numbers.values()) > 0 and max(numbers.values()) >= _LOG_RATIO * min(numbers.values()):
        axes.set_xscale("log")
    for label, points in series.items():
        ordered = sorted(points, key=numbers.__getitem__)
        means = [statistics.fmean(points[text]) for text in ordered]
        spreads = [spread_of(points[text]) or 0.0 for text in ordered]
        axes.errorbar(
            [numbers[text] for text in ordered], means, spreads, label=label, marker="o", markersize=3, capsize=2
        )
    if 1 < len(series) <= _MOST_NAMED:
        axes.legend(fontsize=7)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
