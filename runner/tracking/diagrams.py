"""Diagrams of boxes and arrows, and the picture of a timeline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.tracking.plots import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import FancyBboxPatch


Box = tuple[str, str]  # the names of the row and the column of a box
_DIAGRAM_DPI = 100
# Distances between the centres of boxes, and the size of a box, in inches, which are also the units of the axes.
_COLUMN, _ROW = 4.2, 0.85
_WIDTH, _HEIGHT, _LEGEND = 1.7, 0.5, 0.7
_LINE, _FILL = "#33506f", "#eef3fa"
BETWEEN_COLUMNS = "#c2410c"  # colour of arrows from one column to another
_Point = tuple[float, float]


@dataclass(frozen=True)
class DiagramLegend:
    """The meaning of a box, of an arrow within a column, and of an arrow between columns, which has another colour."""

    box: str
    within: str
    between: str


def box_diagram(
    boxes: Mapping[Box, str], arrows: Mapping[tuple[Box, Box], str], legend: DiagramLegend, out_path: Path
) -> Path:
    """Draw boxes and labelled arrows, and a legend below them, as a PNG; return ``out_path``.

    boxes: box -> text. Rows, from the top, and columns, from the left, are in the order of their first box; the name
    of a column is above its boxes. arrows: (from, to) -> label.
    """
    from matplotlib.figure import Figure

    rows = {row: -_ROW * place for place, row in enumerate(dict.fromkeys(row for row, _ in boxes))}
    columns = {column: _COLUMN * place for place, column in enumerate(dict.fromkeys(column for _, column in boxes))}
    centres = {(row, column): (columns[column], rows[row]) for row, column in boxes}
    figure = Figure(figsize=(_COLUMN * len(columns), _ROW * (len(rows) + 1) + _LEGEND), dpi=_DIAGRAM_DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-_COLUMN / 2, _COLUMN * (len(columns) - 0.5)))
    axes.set(ylim=(-_ROW * (len(rows) - 0.4) - _LEGEND, _ROW * 1.4))
    axes.axis("off")
    for column, x in columns.items():
        axes.text(x, _ROW * 0.8, column, ha="center", fontweight="bold", fontsize=9)
    patches = {box: _draw_box(axes, centres[box], text) for box, text in boxes.items()}
    for (source, target), label in arrows.items():
        ends = {"patchA": patches[source], "patchB": patches[target]}
        _draw_arrow(axes, centres[source], centres[target], ends, label)
    _draw_legend(axes, legend)
    return save_figure(figure, out_path)


def _draw_box(axes: "Axes", centre: _Point, text: str) -> "FancyBboxPatch":
    from matplotlib.patches import FancyBboxPatch

    x, y = centre
    corner = (x - _WIDTH / 2, y - _HEIGHT / 2)
    style = "round,pad=0,rounding_size=0.1"
    box = FancyBboxPatch(corner, _WIDTH, _HEIGHT, boxstyle=style, facecolor=_FILL, edgecolor=_LINE, zorder=2)
    axes.add_patch(box)
    axes.text(x, y, text, ha="center", va="center", fontsize=8, zorder=3)
    return box


def _draw_arrow(axes: "Axes", start: _Point, end: _Point, ends: dict[str, Any], label: str) -> None:
    """Draw an arrow that bends to its right, so that arrows in both directions do not overlap."""
    (x0, y0), (x1, y1) = start, end
    bend, colour = (0.2, BETWEEN_COLUMNS) if x0 != x1 else (0.45, _LINE)
    arrow = {"arrowstyle": "-|>", "color": colour, "lw": 0.8, "connectionstyle": f"arc3,rad={bend}", **ends}
    axes.annotate("", end, start, arrowprops=arrow).set_zorder(1)
    middle = ((x0 + x1 - bend * (y0 - y1)) / 2, (y0 + y1 + bend * (x0 - x1)) / 2)
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
    axes.text(*middle, label, color=colour, fontsize=7, ha="center", va="center", bbox=ground, zorder=1)


def _draw_legend(axes: "Axes", legend: DiagramLegend) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    box = Patch(facecolor=_FILL, edgecolor=_LINE, label=legend.box)
    arrows = ((_LINE, legend.within), (BETWEEN_COLUMNS, legend.between))
    lines = [Line2D([], [], color=colour, marker=">", markevery=(1, 1), label=text) for colour, text in arrows]
    axes.legend(handles=[box, *lines], loc="lower center", fontsize=7, frameon=False)


MOST_ROWS = 48  # largest number of drawn rows; the others are left out, and the title states their number
_COLOURS = ("tab:blue", "tab:orange", "tab:purple", "tab:green", "tab:red", "tab:gray", "tab:brown")

Bars = Sequence[tuple[str, float, float]]  # the bars of a row: kind, begin and duration in milliseconds


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
