"""A table as a picture: our values next to the published ones, the verdicts, and curves of the metrics in columns."""

import io
import math
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev

from runner.tables.cells import FAILS, Line, TableState
from runner.tables.rendering import best_cells, reading_note, shown_columns, title_of, value_text
from runner.tables.results import Result
from runner.tables.table import METRIC
from runner.tables.verdict import CONFIDENCES, DIFFERS
from runner.tracking.table_picture import Panels, TablePicture, Text, table_figure

PNG = "png"


def as_png(state: TableState) -> bytes:
    """Return the table as a PNG: rows and columns, claims, and curves over updates of each metric in a column."""
    stream = io.BytesIO()
    table_figure(picture_of(state)).savefig(stream, format="png", bbox_inches="tight")
    return stream.getvalue()


def picture_of(state: TableState) -> TablePicture:
    """Return the content of the picture."""
    table, best, panels = state.table, best_cells(state), _panels(state)
    columns = [[Text(""), *(Text(row.title) for row in table.rows.values())]]
    for name in shown_columns(state):
        cells = [[line for line in state.lines if line.cell == f"{row}/{name}"] for row in table.rows]
        columns.append([Text(table.columns[name].title, bold=True), *(_ours(lines, best) for lines in cells)])
        if any(line.published for lines in cells for line in lines):
            columns.append([Text("published", bold=True), *map(_published, cells)])
    return TablePicture(title_of(state), list(zip(*columns, strict=True)), list(_sentences(state, panels)), panels)


def _ours(lines: Sequence[Line], best: set[str]) -> Text:
    texts = [value_text(line) or line.verdict for line in lines[:1]]
    texts += [f"{line.verdict} (n={line.sample.n})" for line in lines[:1] if line.sample is not None and line.reason]
    return Text("\n".join(texts), bold=any(line.cell in best for line in lines))


def _published(lines: Sequence[Line]) -> Text:
    """Return the published values of a cell, with the verdicts if our values are complete."""
    texts = [f"{x.published} [{x.confidence}] {'' if x.reason else x.verdict}" for x in lines if x.published]
    return Text("\n".join(texts), bad=any(line.verdict in (FAILS, DIFFERS) for line in lines))


def _sentences(state: TableState, panels: Panels) -> Iterator[Text]:
    """Yield the sentences below the grid: claims with their verdicts, the kind of the values, and the sources."""
    for claim in state.claims:
        yield Text(f"{claim.verdict}: {claim.text}", bad=claim.verdict == FAILS)
    yield Text(reading_note(state) + " Curves have a band of one standard deviation." * bool(panels))
    if state.table.reduced:
        yield Text(f"Reduced: {state.table.reduced}")
    cited = [state.table.papers[each.paper].cite for _, _, cell in state.table.cells() for each in cell.published]
    meanings = "; ".join(f"[{x}] {CONFIDENCES[x]}" for x in dict.fromkeys(line.confidence for line in state.lines) if x)
    if cited:
        yield Text(f"Published: {'; '.join(dict.fromkeys(cited))}. {meanings}.")


def _panels(state: TableState) -> Panels:
    """Return the curves of each metric that a column reads, one for each row whose run has evaluations."""
    panels = dict[str, dict[tuple[str, str], list[tuple[int, float, float]]]]()
    for row, name, _ in state.table.cells():
        column, run = state.table.columns[name], state.table.rows[row].run
        if run and METRIC.fullmatch(column.read):
            scale, unit = (100, " (%)") if column.unit == "%" else (1, "")
            points = list(_points(column.read, scale, list(state.results[run].current.values())))
            if len(points) > 1:
                panels.setdefault(column.read + unit, {})[run, state.table.rows[row].title] = points
    return panels


def _points(metric: str, scale: float, results: Sequence[Result]) -> Iterator[tuple[int, float, float]]:
    """Yield (updates, mean, deviation) over the seeds. The mean is NaN if not all seeds have a finite value."""
    values: dict[int, list[float]] = {}
    for each in (each for result in results for each in result.evaluations if metric in each.values):
        values.setdefault(each.updates, []).append(scale * each.values[metric])
    for updates, found in sorted(values.items()):
        whole = len(found) == len(results) and all(map(math.isfinite, found))
        yield updates, fmean(found) if whole else math.nan, stdev(found) if whole and len(found) > 1 else 0.0
