"""A table as a picture: a grid of texts with sentences below it, and panels with a curve for each run."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Panels = Mapping[str, Mapping[tuple[str, str], Sequence[tuple[int, float, float]]]]
"""Title of a panel -> name and title of a run -> updates, mean and deviation at each point; a mean of NaN is a gap."""


@dataclass(frozen=True)
class Text:
    """A text; each of its lines is wrapped. bad: whether it is drawn in red."""

    text: str
    bold: bool = False
    bad: bool = False


@dataclass(frozen=True)
class TablePicture:
    """The content of a picture. grid: rows of equal length, the headers first."""

    title: str
    grid: Sequence[Sequence[Text]]
    sentences: Sequence[Text]
    panels: Panels


def table_figure(picture: TablePicture) -> "Figure":
    """Return a figure of one square inch, so that coordinates are inches; save it with ``bbox_inches="tight"``."""
    from matplotlib.figure import Figure
    from matplotlib.table import Table

    figure = Figure(figsize=(1, 1), dpi=150)
    page = figure.add_axes((0, 0, 1, 1), frameon=False, xticks=(), yticks=())
    page.text(0, 1.05, _wrapped(picture.title, 60), size=13, weight="bold", va="bottom")
    table = Table(page, loc="upper left")
    page.add_table(table)
    table.auto_set_font_size(False)
    table.auto_set_column_width(list(range(len(picture.grid[0]))))
    for row, content in enumerate(picture.grid):
        texts = [_wrapped(each.text, 34) for each in content]
        height = 0.19 * max(text.count("\n") + 1.4 for text in texts)
        for column, (each, text) in enumerate(zip(content, texts, strict=True)):
            cell = table.add_cell(row, column, 1, height, text=text, loc="right" if column else "left")
            cell.set_text_props(size=9.5, weight=700 if each.bold else 400, color="red" if each.bad else "black")
            cell.visible_edges = "TB" if row == 0 else "B" if row == len(picture.grid) - 1 else "open"
            cell.PAD = 0.1 if column else 0.02
    last: Any = table
    below: dict[str, Any] = {"xy": (0, 0), "xytext": (0, -4), "textcoords": "offset points", "va": "top", "size": 8}
    for each in picture.sentences:
        last = page.annotate(_wrapped(each.text, 110), xycoords=last, color="red" if each.bad else "black", **below)
    if picture.panels:
        _draw_panels(figure, picture.panels, last.get_window_extent().y0 / figure.dpi - 3.4)
    return figure


def _draw_panels(figure: "Figure", panels: Panels, bottom: float) -> None:
    """Draw the panels next to each other, and a legend on their right."""
    from matplotlib import colormaps

    runs = list(dict.fromkeys(run for curves in panels.values() for run in curves))
    colours = colormaps["tab10"] if len(runs) <= 10 else colormaps["turbo"].resampled(len(runs))
    for place, (title, curves) in enumerate(panels.items()):
        axes = figure.add_axes((0.5 + 4.2 * place, bottom, 3.4, 2.7))
        lines = [axes.plot([], [], color=colours(number))[0] for number in range(len(runs))]
        for run, points in curves.items():
            colour, marker = colours(runs.index(run)), "o" if len(points) <= 20 else ""
            updates, means, deviations = np.array(points).T
            axes.plot(updates, means, color=colour, marker=marker, markersize=2.5)
            axes.fill_between(updates, means - deviations, means + deviations, color=colour, alpha=0.2, linewidth=0)
        ends = [points[-1][0] for points in curves.values()]
        axes.set(xlabel="updates", title=_wrapped(title, 24), xscale="log" if max(ends) >= 5 * min(ends) else "linear")
        axes.grid(alpha=0.3)
    labels = [_wrapped(title, 34) for _, title in runs]
    axes.legend(lines, labels, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _wrapped(text: str, width: int) -> str:
    """Return a text with lines of at most ``width`` characters; escape dollar signs, which would enclose a formula."""
    return "\n".join(textwrap.fill(line, width) for line in text.splitlines()).replace("$", r"\$")
