"""A table as text, Markdown, CSV, JSON and LaTeX: our values beside the published ones, with verdicts and claims."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from runner.system.schema import Record
from runner.system.text import duration, text_table
from runner.tables.cells import Decided, Line, TableState
from runner.tables.results import Result
from runner.tables.statistics import Sample
from runner.tables.table import BENCHMARK, COUNT, LOWEST
from runner.tables.verdict import CONFIDENCES

_HEADERS = ("row", "column", "kind", "ours", "published", "source", "difference", "verdict")
_CLAIM_HEADERS = ("claim", "verdict", "evidence")
_SCALES = {"%": 100.0, "ms": 1000.0, "": 1.0}


def as_text(state: TableState) -> str:
    """Return the table for a terminal."""
    parts = [_title(state), text_table(_HEADERS, map(_cells, state.lines), ruled=True)]
    if state.claims:
        parts.append(text_table(_CLAIM_HEADERS, map(_claim, state.claims), ruled=True))
    return "\n\n".join([*parts, "\n".join(_below(state))]) + "\n"


def as_markdown(state: TableState) -> str:
    """Return the table in GitHub-flavoured Markdown."""
    parts = [f"## {_title(state)}", _pipes(_HEADERS, map(_cells, state.lines))]
    if state.claims:
        parts.append(_pipes(_CLAIM_HEADERS, map(_claim, state.claims)))
    return "\n\n".join([*parts, "\n".join(f"- {line}" for line in _below(state))]) + "\n"


def as_csv(state: TableState) -> str:
    """Return the lines as CSV with all digits."""
    stream = io.StringIO()
    rows = [_flat(line) for line in state.lines]
    writer = csv.DictWriter(stream, rows[0].keys() if rows else [])
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def as_json(state: TableState) -> str:
    """Return the lines, the claims, and the origin of each result as JSON with all digits."""
    document = {
        "title": state.table.title,
        "kind": state.table.kind,
        "lines": [Record(Line).write(line) for line in state.lines],
        "claims": [asdict(claim) for claim in state.claims],
        "runs": {
            run: [{"seed": seed, **asdict(result.origin)} for seed, result in found.current.items()]
            for run, found in state.results.items()
        },
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def as_latex(state: TableState) -> str:
    """Return our values as LaTeX: rows and columns of the table, for the package booktabs, with the best in bold."""
    table = state.table
    shown = {line.cell: line for line in state.lines}
    columns = [name for name in table.columns if any(cell.endswith(f"/{name}") for cell in shown)]
    best = _best(state)
    lines = [
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * len(columns)}}}",
        "\\toprule",
        " & ".join(["", *(_latex(table.columns[name].title) for name in columns)]) + " \\\\",
        "\\midrule",
    ]
    for name, row in table.rows.items():
        cells = [_latex(row.title)]
        for column in columns:
            line = shown.get(f"{name}/{column}")
            text = "" if line is None else _latex(_ours(line) or line.verdict)
            cells.append(f"\\textbf{{{text}}}" if line is not None and line.cell in best else text)
        lines.append(" & ".join(cells) + " \\\\")
    title = _latex(f"{table.title} ({table.kind}). {table.reduced}".strip())
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", f"% {title}"]) + "\n"


FORMATS = {"text": as_text, "md": as_markdown, "csv": as_csv, "json": as_json, "latex": as_latex}
"""Value of ``--format`` -> the function that makes the text."""


def _title(state: TableState) -> str:
    return f"{state.table.title} ({state.table.kind})"


def _pipes(headers: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    every = (headers, ["---"] * len(headers), *rows)
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in every)


def _cells(line: Line) -> list[str]:
    apart = ""
    if line.difference is not None:
        apart = f"{100 * line.difference:+.2f} points" if line.unit == "%" else f"{line.difference:+.2%}"
    source = f"{line.source} [{line.confidence}]" if line.source else ""
    return [line.row, line.column, line.kind, _ours(line), line.published, source, apart, line.verdict]


def _ours(line: Line) -> str:
    """Return our mean or median as text: with the standard deviation and the number of seeds, unless it is a count."""
    sample = line.sample
    if sample is None:
        return ""
    if line.kind == COUNT:
        return f"{sample.values[0]:,.0f}"
    unit = f" {line.unit}" if line.unit else ""
    if line.ours is None:
        return f"not finite ({sample.not_finite} of {sample.n})"
    return f"{_spread(line.ours, sample, line.unit)}{unit} (n={sample.n})"


def _spread(center: float, sample: Sample, unit: str) -> str:
    scale = _SCALES[unit]
    if sample.deviation is None:
        return f"{scale * center:.4g}"
    if sample.deviation == 0:
        return f"{scale * center:.4g} ± 0"
    return f"{scale * center:.4g} ± {scale * sample.deviation:.2g}"


def _claim(claim: Decided) -> list[str]:
    return [claim.text, claim.verdict, claim.evidence]


def _flat(line: Line) -> dict[str, object]:
    """Return a line with the statistics of its sample as entries of their own."""
    flat = {name: value for name, value in vars(line).items() if name != "sample"}
    sample = line.sample
    interval = None if sample is None else sample.interval
    return {
        **flat,
        "deviation": None if sample is None else sample.deviation,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
        "seeds": 0 if sample is None else sample.n,
        "values": [] if sample is None else list(sample.values),
    }


def _below(state: TableState) -> Iterator[str]:
    """Yield the sentences below a table: verdicts, reasons, runs, its note, and the meaning of the codes."""
    table = state.table
    verdicts = Counter(line.verdict for line in state.lines if line.verdict)
    yield (", ".join(f"{count} {word}" for word, count in verdicts.items()) or "no verdicts") + "."
    if state.claims:
        yield (
            "Claims: "
            + ", ".join(f"{count} {word}" for word, count in Counter(c.verdict for c in state.claims).items())
            + "."
        )
    if table.reduced:
        yield f"In small: {table.reduced}"
    published = {column.title for column in table.columns.values() if column.missing}
    named = ((line.column if line.column in published else line.row, line.reason) for line in state.lines)
    yield from dict.fromkeys(f"{name}: {reason}." for name, reason in named if reason)
    yield from (f"{text}." for text in state.earlier)
    yield from _origins(state)
    if table.note:
        yield table.note
    codes = dict.fromkeys(line.confidence for line in state.lines if line.confidence)
    if codes:
        yield "; ".join(f"[{code}] {CONFIDENCES[code]}" for code in codes) + "."


def _origins(state: TableState) -> Iterator[str]:
    """Yield, for tables of training runs, the seeds, the hours, the machine and the commit of the results."""
    found = [result for each in state.results.values() for result in each.current.values()]
    if state.table.kind == COUNT or not found:
        return
    seconds = sum(result.origin.seconds for result in found)
    seeds = ", ".join(map(str, state.table.seeds))
    machines = dict.fromkeys(_machine(result) for result in found)
    commits = dict.fromkeys(_commit(result.origin.commit) for result in found)
    word, libraries = "Seeds", ""
    if state.table.kind == BENCHMARK:
        versions = dict.fromkeys(f"{name} {each}" for result in found for name, each in result.origin.versions.items())
        word, libraries = "Rounds", f"{', '.join(versions)}; "
    runs = f"{duration(seconds)} of runs on {' and '.join(machines)}"
    yield f"{word} {seeds}; {runs}; {libraries}commit {' and '.join(commits)}."


def _commit(commit: str) -> str:
    """Return a commit shortened, with its mark for changed files."""
    name, _, mark = commit.partition("-")
    return "-".join(filter(None, (name[:12], mark))) or "no commit"


def _machine(result: Result) -> str:
    machine = result.origin.machine
    return f"{machine.get('cpu', 'an unknown machine')} with {machine.get('threads', '?')} thread(s) per worker"


def _best(state: TableState) -> set[str]:
    """Return the cells with the best value of each column, as printed; in a benchmark, of each row."""
    groups: dict[tuple[str, str], dict[str, float]] = {}
    for line in state.lines:
        row, _, column = line.cell.partition("/")
        if (which := state.table.columns[column].best) and line.ours is not None:
            group = groups.setdefault((row if line.kind == BENCHMARK else column, which), {})
            group[line.cell] = line.ours
    extremes = {key: (min if key[1] == LOWEST else max)(group.values()) for key, group in groups.items()}
    return {cell for key, group in groups.items() for cell, ours in group.items() if ours == extremes[key]}


_SPECIAL = re.compile(r"[&%$#_{}~^\\<>]")
_IN_LATEX = {
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "\\": "\\textbackslash{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
}


def _latex(text: str) -> str:
    """Return text with the special characters of LaTeX escaped."""
    escaped = _SPECIAL.sub(lambda match: _IN_LATEX.get(match[0], f"\\{match[0]}"), text)
    return escaped.replace("±", "$\\pm$")
