"""A table as text, Markdown, CSV and JSON: our values beside the published ones, with verdicts."""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace

from runner.system.text import text_table
from runner.tables.results import Result
from runner.tables.table_file import Table
from runner.tables.verdict import CONFIDENCES, number_of, verdict

MISSING, STALE = "missing", "stale"
"""Verdicts on a cell whose value does not exist, or was computed for an earlier configuration."""


@dataclass(frozen=True)
class Line:
    """One line of a table: a cell and one published value for it, or none.

    ours: our value; None if it is missing. difference: from the published value, relative to it. verdict: "" for a
    published value that decides nothing. reason: why our value is missing or stale.
    """

    row: str
    column: str
    kind: str
    ours: float | None = None
    published: str = ""
    source: str = ""
    confidence: str = ""
    difference: float | None = None
    verdict: str = ""
    reason: str = ""


_HEADERS = ("row", "column", "kind", "ours", "published", "source", "difference", "verdict")


def lines(table: Table, results: Mapping[str, Result], stale: Mapping[str, str]) -> Iterator[Line]:
    """Yield the lines of a table. results: of its runs. stale: run -> the reason why its result is out of date."""
    for row_name, column, cell in table.cells():
        row = table.rows[row_name]
        ours = results[row.run].values.get(column) if row.run in results else None
        reason = row.missing or stale.get(row.run, "") or ("" if ours is not None else "it was not run")
        state = "" if not reason else MISSING if ours is None else STALE
        line = Line(row.title, table.columns[column].title, table.kind, ours, verdict=state, reason=reason)
        if not cell.published:
            yield line
        for each in cell.published:
            source = ", ".join(filter(None, (table.papers[each.paper].cite, each.where)))
            line = replace(line, published=each.printed, source=source, confidence=each.confidence)
            if ours is None or reason:
                yield line
                continue
            value = float(number_of(each.printed))
            yield replace(line, difference=(ours - value) / value if value else None, verdict=verdict(ours, each))


def as_text(table: Table, found: Sequence[Line]) -> str:
    """Return the table for a terminal."""
    rows = text_table(_HEADERS, map(_cells, found), ruled=True)
    return f"{table.title} ({table.kind})\n\n{rows}\n\n{_below(table, found)}\n"


def as_markdown(table: Table, found: Sequence[Line]) -> str:
    """Return the table in GitHub-flavoured Markdown."""
    rows = [f"| {' | '.join(row)} |" for row in (_HEADERS, ["---"] * len(_HEADERS), *map(_cells, found))]
    return f"## {table.title} ({table.kind})\n\n" + "\n".join(rows) + f"\n\n{_below(table, found)}\n"


def as_csv(table: Table, found: Sequence[Line]) -> str:
    """Return the lines as CSV with all digits."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [each.name for each in fields(Line)])
    writer.writeheader()
    writer.writerows(map(asdict, found))
    return stream.getvalue()


def as_json(table: Table, found: Sequence[Line]) -> str:
    """Return the lines as JSON with all digits."""
    document = {"title": table.title, "kind": table.kind, "lines": [asdict(each) for each in found]}
    return json.dumps(document, indent=1) + "\n"


FORMATS = {"text": as_text, "md": as_markdown, "csv": as_csv, "json": as_json}
"""Value of ``--format`` -> the function that makes the text."""


def _cells(line: Line) -> list[str]:
    ours = "" if line.ours is None else f"{line.ours:,.0f}"
    apart = "" if line.difference is None else f"{line.difference:+.2%}"
    source = f"{line.source} [{line.confidence}]" if line.source else ""
    return [line.row, line.column, line.kind, ours, line.published, source, apart, line.verdict]


def _below(table: Table, found: Sequence[Line]) -> str:
    """Return the sentences below a table: counts of verdicts, reasons, its note, and the meaning of the codes."""
    verdicts = Counter(line.verdict for line in found if line.verdict)
    total = ", ".join(f"{count} {word}" for word, count in verdicts.items()) or "no verdicts"
    reasons = dict.fromkeys(f"{line.row}: {line.reason}." for line in found if line.reason)
    codes = dict.fromkeys(line.confidence for line in found if line.confidence)
    meaning = "; ".join(f"[{code}] {CONFIDENCES[code]}" for code in codes)
    return "\n".join(filter(None, (f"{total}.", *reasons, table.note, f"{meaning}." if meaning else "")))
