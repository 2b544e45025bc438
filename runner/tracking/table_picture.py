"""A table as a picture: a grid of texts with sentences below it, and panels with a curve for each run."""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GOOD, BAD, OPEN, FAINT, PLAIN = "good", "bad", "open", "faint", "plain"
_COLOURS = {GOOD: "#1a7f37", BAD: "#c0392b", OPEN: "#b26a00", FAINT: "#6b7280", PLAIN: "#111827"}
"""Tone of a text -> its colour."""


@dataclass(frozen=True)
class Text:
    """A text in the grid. tone: one of the tones above."""

    text: str
    tone: str = PLAIN
    bold: bool = False


@dataclass(frozen=True)
class Group:
    """Adjacent columns of the grid below one title. headers: of the columns. right: whether their texts end flush."""

    title: str
    headers: Sequence[str]
    right: Sequence[bool]


@dataclass(frozen=True)
class GridRow:
    """A row of the grid. columns: the lines of text in each column of all groups."""

    title: str
    columns: Sequence[Sequence[Text]]


@dataclass(frozen=True)
class Curve:
    """The values of a run over updates. means, deviations: NaN where the curve has a gap; deviations may be zero."""

    run: str
    updates: Sequence[int]
    means: Sequence[float]
    deviations: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """The curves of one metric. percent: whether its fractions are drawn in percent."""

    metric: str
    curves: Sequence[Curve]
    percent: bool = False


@dataclass(frozen=True)
class TablePicture:
    """The content of a picture. sentences: below the grid, each begins with a word that has a tone, or with ""."""

    title: str
    groups: Sequence[Group]
    rows: Sequence[GridRow]
    sentences: Sequence[tuple[Text, str]] = ()
    panels: Sequence[Panel] = ()


_DPI = 150
_TITLE, _CELL, _SMALL = 13.0, 9.5, 8.0
"""Sizes of fonts in points."""
_LEADING = 1.35
"""Distance of two lines of text, in font sizes."""
# Lengths in inches.
_MARGIN, _GAP, _GROUP_GAP, _PADDING = 0.25, 0.16, 0.36, 0.06
_MOST_SPARE = 1.5
_WIDEST_TITLE, _WIDEST_HEADER, _NARROWEST = 3.2, 1.9, 7.0
_PANEL_WIDTH, _PANEL_HEIGHT, _LEGEND_WIDTH = 3.4, 2.9, 2.4
_LEFT, _BOTTOM, _TOP = 0.75, 0.6, 0.3
_HINTING = 1.03
"""Largest ratio of the width of a drawn text, whose glyphs are moved to whole pixels, to that of its outlines."""
_LOG_RATIO = 50.0
_STYLES = ("-", "--", ":", "-.")


def draw_table(picture: TablePicture) -> bytes:
    """Return a picture as PNG."""
    stream = io.BytesIO()
    table_figure(picture).savefig(stream, format="png")
    return stream.getvalue()


def table_figure(picture: TablePicture) -> "Figure":
    """Return the figure of a picture. Texts are wrapped, and the figure is as large as its texts need."""
    from matplotlib.figure import Figure

    grid = _Grid(picture)
    legend = _legend_lines(picture)
    panel = max(_PANEL_HEIGHT, sum(map(len, legend.values())) * _line(_SMALL) + len(legend) * _line(_SMALL) / 2)
    curves = _TOP + panel + _BOTTOM if picture.panels else 0.0
    width, height = grid.width, grid.height + curves
    figure = Figure(figsize=(width, height), dpi=_DPI, facecolor="white")
    axes = figure.add_axes((0, curves / height, 1, grid.height / height))
    axes.set(xlim=(0, width), ylim=(grid.height, 0))
    axes.axis("off")
    grid.draw(axes)
    if picture.panels:
        _draw_panels(figure, picture, legend, panel)
    return figure


class _Grid:
    """The places of all texts of a grid, in inches from the upper left corner."""

    def __init__(self, picture: TablePicture) -> None:
        self._picture = picture
        self._titles = [_wrapped(row.title, _WIDEST_TITLE, _CELL) for row in picture.rows]
        self._stub = max((_width(line, _CELL) for lines in self._titles for line in lines), default=0.0)
        right = self._place_columns(_GROUP_GAP)
        panels = len(picture.panels) * _PANEL_WIDTH + _LEGEND_WIDTH if picture.panels else 0.0
        room = max(right + _MARGIN, panels, _NARROWEST) - 2 * _MARGIN
        self._title = _wrapped(picture.title, room, _TITLE, bold=True)
        self._sentences = [(word, _sentence(word, text, room)) for word, text in picture.sentences]
        texts = [_width(line, _TITLE, bold=True) for line in self._title]
        texts += [_width(line, _SMALL) for _, lines in self._sentences for line in lines]
        self.width = max([room, *texts]) + 2 * _MARGIN
        spare = (self.width - _MARGIN - right) / max(1, len(picture.groups))
        self._right = self._place_columns(_GROUP_GAP + min(spare, _MOST_SPARE))
        self.height = self._draw(None)

    def draw(self, axes: "Axes") -> None:
        """Draw the grid."""
        self._draw(axes)

    def _place_columns(self, gap: float) -> float:
        """Set the left edges and the widths of the columns; return the right edge of the grid. gap: before a group."""
        self._headers = list[list[str]]()
        self._lefts, self._widths = list[float](), list[float]()
        x, column = _MARGIN + self._stub, 0
        for group in self._picture.groups:
            x += gap
            start = x
            for header in group.headers:
                texts = [text for row in self._picture.rows for text in row.columns[column]]
                width = max([_width(header, _SMALL), *(_width(text.text, _CELL, text.bold) for text in texts)])
                self._lefts.append(x)
                self._widths.append(width)
                x += width + _GAP
                column += 1
            x -= _GAP
            lines = _wrapped(group.title, max(_WIDEST_HEADER, x - start), _CELL, bold=True)
            self._headers.append(lines)
            # A title that is wider than its columns widens the last one.
            lacking = max(_width(line, _CELL, bold=True) for line in lines) - (x - start)
            if lacking > 0:
                self._widths[-1] += lacking
                x += lacking
        return x

    def _draw(self, axes: "Axes | None") -> float:
        """Draw the grid, or only return its height if there are no axes."""
        y = _MARGIN
        for line in self._title:
            y = _put(axes, _MARGIN, y, Text(line, bold=True), _TITLE)
        y = self._rule(axes, y + 0.08, 1.2)
        y = self._draw_headers(axes, y + _PADDING)
        y = self._rule(axes, y + _PADDING, 0.7)
        for row, title in zip(self._picture.rows, self._titles, strict=True):
            y = self._draw_row(axes, y + _PADDING, row, title) + _PADDING
        y = self._rule(axes, y, 1.2) + 0.1
        for word, lines in self._sentences:
            for place, line in enumerate(lines):
                if place == 0 and word.text:
                    _put(axes, _MARGIN, y, word, _SMALL)
                    line = line.removeprefix(word.text)
                    y = _put(axes, _MARGIN + _width(word.text, _SMALL, word.bold), y, Text(line, FAINT), _SMALL)
                else:
                    y = _put(axes, _MARGIN, y, Text(line, FAINT), _SMALL)
        return y + _MARGIN / 2

    def _draw_headers(self, axes: "Axes | None", top: float) -> float:
        most, first = max(map(len, self._headers), default=0), 0
        bottom = top + most * _line(_CELL)
        has_headers = any(header for group in self._picture.groups for header in group.headers)
        for group, lines in zip(self._picture.groups, self._headers, strict=True):
            last = first + len(group.headers) - 1
            left, right = self._lefts[first], self._lefts[last] + self._widths[last]
            y = bottom - len(lines) * _line(_CELL)
            alone = len(group.headers) == 1
            for line in lines:
                x, side = (right, "right") if alone else ((left + right) / 2, "center")
                y = _put(axes, x, y, Text(line, bold=True), _CELL, side)
            if not alone and axes is not None:
                axes.plot([left, right], [y + 0.02, y + 0.02], color=_COLOURS[FAINT], linewidth=0.5)
            for place, header in enumerate(group.headers, start=first):
                self._put_in(axes, place, bottom + 0.05, Text(header, FAINT), _SMALL, group.right[place - first])
            first = last + 1
        return bottom + (0.05 + _line(_SMALL) if has_headers else 0.0)

    def _draw_row(self, axes: "Axes | None", top: float, row: GridRow, title: Sequence[str]) -> float:
        y = top
        for line in title:
            y = _put(axes, _MARGIN, y, Text(line), _CELL)
        bottom = y
        right = [each for group in self._picture.groups for each in group.right]
        for place, texts in enumerate(row.columns):
            y = top
            for text in texts:
                y = self._put_in(axes, place, y, text, _CELL, right[place])
            bottom = max(bottom, y)
        return bottom

    def _put_in(self, axes: "Axes | None", place: int, y: float, text: Text, size: float, right: bool) -> float:
        """Put a text into a column; return the top of the next line."""
        x = self._lefts[place] + (self._widths[place] if right else 0.0)
        return _put(axes, x, y, text, size, "right" if right else "left")

    def _rule(self, axes: "Axes | None", y: float, linewidth: float) -> float:
        if axes is not None:
            axes.plot([_MARGIN, self._right], [y, y], color=_COLOURS[PLAIN], linewidth=linewidth)
        return y


def _put(axes: "Axes | None", x: float, y: float, text: Text, size: float, side: str = "left") -> float:
    """Put one line of text with its upper edge at y; return the top of the next line."""
    if axes is not None and text.text:
        weight, colour = "bold" if text.bold else "normal", _COLOURS[text.tone]
        axes.text(
            x,
            y + 0.78 * _line(size),
            text.text,
            size=size,
            color=colour,
            weight=weight,
            ha=side,
            va="baseline",
            parse_math=False,
        )
    return y + _line(size)


def _line(size: float) -> float:
    return size * _LEADING / 72


def _width(text: str, size: float, bold: bool = False) -> float:
    """Return the width of a text in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size, weight="bold" if bold else "normal")
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]) / 72 * _HINTING


def _wrapped(text: str, width: float, size: float, *, bold: bool = False) -> list[str]:
    """Return the lines of a text that are no wider than ``width``, in inches; longer words are cut."""
    lines = [""]
    for word in (piece for whole in text.split() for piece in _pieces(whole, width, size, bold)):
        longer = f"{lines[-1]} {word}".strip()
        if _width(longer, size, bold) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _pieces(word: str, width: float, size: float, bold: bool) -> Iterator[str]:
    if len(word) == 1 or _width(word, size, bold) <= width:
        yield word
        return
    half = len(word) // 2
    yield from _pieces(word[:half], width, size, bold)
    yield from _pieces(word[half:], width, size, bold)


def _sentence(word: Text, text: str, width: float) -> list[str]:
    return _wrapped(f"{word.text} {text}".strip(), width, _SMALL)


def _legend_lines(picture: TablePicture) -> dict[str, list[str]]:
    """Return run -> the lines of its name in the legend."""
    runs = dict.fromkeys(curve.run for panel in picture.panels for curve in panel.curves)
    return {run: _wrapped(run, _LEGEND_WIDTH - 0.75, _SMALL) for run in runs}


def _draw_panels(
    figure: "Figure", picture: TablePicture, legend: Mapping[str, Sequence[str]], panel_height: float
) -> None:
    """Draw the panels next to each other at the bottom of a figure, and a legend on their right."""
    width, height = figure.get_size_inches()
    styles = dict(zip(legend, _curve_styles(), strict=False))
    each = (width - _LEGEND_WIDTH) / len(picture.panels)
    for place, panel in enumerate(picture.panels):
        left, inner = place * each + _LEFT, each - _LEFT - 0.1
        axes = figure.add_axes((left / width, _BOTTOM / height, inner / width, panel_height / height))
        _draw_panel(axes, panel, styles)
    handles = [axes.plot([], [], color=colour, linestyle=line)[0] for colour, line in styles.values()]
    drawn = figure.legend(
        handles,
        [str(place) for place in range(len(legend))],
        loc="upper left",
        bbox_to_anchor=(1 - (_LEGEND_WIDTH - 0.1) / width, (_BOTTOM + panel_height) / height),
        fontsize=_SMALL,
        frameon=False,
        borderaxespad=0,
    )
    # Matplotlib leaves out labels that begin with an underscore, and typesets labels with two dollar signs.
    for text, lines in zip(drawn.get_texts(), legend.values(), strict=True):
        text.set_parse_math(False)
        text.set_text("\n".join(lines))


def _curve_styles() -> Iterator[tuple[str, str]]:
    """Yield a colour and a style of line for each run; after ten runs, the colours return in another style."""
    from matplotlib.colors import TABLEAU_COLORS

    for style in _STYLES:
        yield from ((name, style) for name in TABLEAU_COLORS)


def _draw_panel(axes: "Axes", panel: Panel, styles: Mapping[str, tuple[str, str]]) -> None:
    scale = 100.0 if panel.percent else 1.0
    values = list[float]()
    for curve in panel.curves:
        colour, line = styles[curve.run]
        means = [scale * mean for mean in curve.means]
        low = [mean - scale * deviation for mean, deviation in zip(means, curve.deviations, strict=True)]
        high = [mean + scale * deviation for mean, deviation in zip(means, curve.deviations, strict=True)]
        marker = "o" if len(means) <= 20 else None
        axes.plot(curve.updates, means, color=colour, linestyle=line, linewidth=1.4, marker=marker, markersize=2.5)
        axes.fill_between(curve.updates, low, high, color=colour, alpha=0.18, linewidth=0)
        values += [value for value in low if math.isfinite(value)]
    if values and min(values) > 0 and max(values) >= _LOG_RATIO * min(values):
        axes.set_yscale("log")
    axes.set_xlabel("updates", size=_SMALL)
    axes.set_title(f"{panel.metric} (%)" if panel.percent else panel.metric, size=_CELL, loc="left")
    axes.tick_params(labelsize=_SMALL)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
