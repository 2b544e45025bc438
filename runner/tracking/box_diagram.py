"""A picture of boxes in columns with arrows between them, drawn without a display and without Graphviz's program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import FancyBboxPatch

Box = tuple[str, str]
"""Its row and its column."""

_DPI = 100
# In inches, which are also the units of the drawing: distance of box centres, and size of a box.
_COLUMN, _ROW = 4.2, 0.85
_WIDTH, _HEIGHT = 1.7, 0.5
_LINE, _FILL = "#33506f", "#eef3fa"

_Point = tuple[float, float]


def box_diagram(boxes: Mapping[Box, str], arrows: Mapping[tuple[Box, Box], str], out_path: Path) -> Path:
    """Draw boxes and labelled arrows as a PNG and return ``out_path``.

    boxes: text of each. Rows, from the top, and columns come in the order the boxes name them first; a column's
    name stands above it. arrows: label of each, from its first box to its second.
    """
    # A figure made this way draws with Agg and leaves pyplot's global state, and any display, alone.
    from matplotlib.figure import Figure

    rows = {row: -_ROW * place for place, row in enumerate(dict.fromkeys(row for row, _ in boxes))}
    columns = {column: _COLUMN * place for place, column in enumerate(dict.fromkeys(column for _, column in boxes))}
    centres = {(row, column): (columns[column], rows[row]) for row, column in boxes}
    figure = Figure(figsize=(_COLUMN * len(columns), _ROW * (len(rows) + 1)), dpi=_DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-_COLUMN / 2, _COLUMN * (len(columns) - 0.5)), ylim=(-_ROW * (len(rows) - 0.4), _ROW * 1.4))
    axes.axis("off")
    for column, x in columns.items():
        axes.text(x, _ROW * 0.8, column, ha="center", fontweight="bold", fontsize=9)
    patches = {box: _draw_box(axes, centres[box], text) for box, text in boxes.items()}
    for (source, target), label in arrows.items():
        ends = {"patchA": patches[source], "patchB": patches[target]}
        _draw_arrow(axes, centres[source], centres[target], ends, label)
    figure.savefig(out_path, format="png")
    return out_path


def _draw_box(axes: Axes, centre: _Point, text: str) -> FancyBboxPatch:
    from matplotlib.patches import FancyBboxPatch

    x, y = centre
    corner = (x - _WIDTH / 2, y - _HEIGHT / 2)
    style = "round,pad=0,rounding_size=0.1"
    box = FancyBboxPatch(corner, _WIDTH, _HEIGHT, boxstyle=style, facecolor=_FILL, edgecolor=_LINE, zorder=2)
    axes.add_patch(box)
    axes.text(x, y, text, ha="center", va="center", fontsize=8, zorder=3)
    return box


def _draw_arrow(axes: Axes, start: _Point, end: _Point, ends: dict[str, Any], label: str) -> None:
    """Bend to the right of the direction of flow, so that the way back is another line."""
    (x0, y0), (x1, y1) = start, end
    bend = 0.2 if x0 != x1 else 0.45
    arrow = {"arrowstyle": "-|>", "color": _LINE, "lw": 0.8, "connectionstyle": f"arc3,rad={bend}", **ends}
    axes.annotate("", end, start, arrowprops=arrow).set_zorder(1)
    middle = ((x0 + x1 - bend * (y0 - y1)) / 2, (y0 + y1 + bend * (x0 - x1)) / 2)
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
    axes.text(*middle, label, color=_LINE, fontsize=7, ha="center", va="center", bbox=ground, zorder=1)
