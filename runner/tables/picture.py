"""A table as a picture: our values beside the published ones, the verdicts, and curves of the metrics it reads."""

import math
from collections.abc import Iterator, Sequence
from statistics import mean, stdev

from runner.tables.cells import FAILS, HOLDS, Line, TableState
from runner.tables.rendering import best_cells, reading_note, shown_columns, title_of, value_text
from runner.tables.results import Result
from runner.tables.table import METRIC
from runner.tables.verdict import AGREES, CONFIDENCES, DIFFERS, PASSES
from runner.tracking.table_picture import (
    BAD,
    FAINT,
    GOOD,
    OPEN,
    Curve,
    GridRow,
    Group,
    Panel,
    TablePicture,
    Text,
    draw_table,
)

PNG = "png"
_TONES = {PASSES: GOOD, AGREES: GOOD, HOLDS: GOOD, FAILS: BAD, DIFFERS: BAD}
"""Verdict -> its tone; that of other verdicts is OPEN."""


def as_png(state: TableState) -> bytes:
    """Return the table as a PNG: rows and columns, claims, and for each metric read the curves over updates."""
    return draw_table(picture_of(state))


def picture_of(state: TableState) -> TablePicture:
    """Return the content of the picture."""
    table, columns = state.table, shown_columns(state)
    best = best_cells(state)
    lines: dict[str, list[Line]] = {}
    for line in state.lines:
        lines.setdefault(line.cell, []).append(line)
    groups = [
        _group(table.columns[name].title, [line for line in state.lines if line.cell.split("/", 1)[1] == name])
        for name in columns
    ]
    rows = []
    for row, content in table.rows.items():
        texts = list[Sequence[Text]]()
        for name, group in zip(columns, groups, strict=True):
            cell = f"{row}/{name}"
            texts += _texts(lines.get(cell, []), cell in best, len(group.headers))
        rows.append(GridRow(content.title, texts))
    return TablePicture(title_of(state), groups, rows, list(_sentences(state)), list(_panels(state)))


def _group(title: str, lines: Sequence[Line]) -> Group:
    if any(line.published for line in lines):
        return Group(title, ("ours", "published", ""), (True, True, False))
    return Group(title, ("",), (True,))


def _texts(lines: Sequence[Line], best: bool, columns: int) -> Iterator[Sequence[Text]]:
    """Yield the lines of text in each column that a cell has: ours, published and verdict, or only ours."""
    ours = list[Text]()
    if lines:
        first = lines[0]
        value = value_text(first)
        ours.append(Text(value, bold=best) if value else Text(first.verdict, FAINT))
        if first.sample is not None and first.reason:
            ours.append(Text(f"{first.verdict} (n={first.sample.n})", OPEN))
    yield ours
    if columns > 1:
        published = [line for line in lines if line.published]
        yield [Text(f"{line.published} [{line.confidence}]", FAINT) for line in published]
        yield [Text("" if line.reason else line.verdict, _TONES.get(line.verdict, OPEN)) for line in published]


def _sentences(state: TableState) -> Iterator[tuple[Text, str]]:
    """Yield the sentences below the grid: claims with their verdicts, what the values are, and the sources."""
    for claim in state.claims:
        yield Text(f"{claim.verdict}:", _TONES.get(claim.verdict, OPEN), bold=True), claim.text
    cited = [state.table.papers[each.paper].cite for _, _, cell in state.table.cells() for each in cell.published]
    codes = dict.fromkeys(line.confidence for line in state.lines if line.confidence)
    meanings = "; ".join(f"[{code}] {CONFIDENCES[code]}" for code in codes)
    sources = "; ".join(dict.fromkeys(cited))
    band = "Curves: mean, with a band of one standard deviation." if any(_panels(state)) else ""
    for text in (
        " ".join(filter(None, (reading_note(state), band))),
        f"In small: {state.table.reduced}" if state.table.reduced else "",
        f"Published: {sources}. {meanings}." if cited else "",
    ):
        if text:
            yield Text(""), text


def _panels(state: TableState) -> Iterator[Panel]:
    """Yield the curves of each metric that a column reads, one for each row whose run has evaluations."""
    table = state.table
    for metric in dict.fromkeys(column.read for column in table.columns.values() if METRIC.fullmatch(column.read)):
        readers = [name for name, column in table.columns.items() if column.read == metric]
        runs: dict[str, str] = {}
        for row in table.rows.values():
            if row.run and any(name in row.cells for name in readers):
                runs.setdefault(row.run, row.title)
        curves = [_curve(title, metric, list(state.results[run].current.values())) for run, title in runs.items()]
        if drawn := [curve for curve in curves if curve.updates]:
            yield Panel(metric, drawn, any(table.columns[name].unit == "%" for name in readers))


def _curve(title: str, metric: str, results: Sequence[Result]) -> Curve:
    """Return the mean of a metric over the seeds; it has a gap where not all seeds have a finite value."""
    values: dict[int, list[float]] = {}
    for result in results:
        for each in result.evaluations:
            if metric in each.values:
                values.setdefault(each.updates, []).append(each.values[metric])
    updates = sorted(values)
    whole = {at: len(values[at]) == len(results) and all(map(math.isfinite, values[at])) for at in updates}
    means = [mean(values[at]) if whole[at] else math.nan for at in updates]
    deviations = [math.nan if not whole[at] else stdev(values[at]) if len(values[at]) > 1 else 0.0 for at in updates]
    return Curve(title, updates, means, deviations)
