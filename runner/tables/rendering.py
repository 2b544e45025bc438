"""A table as text, Markdown, CSV, JSON and LaTeX: our values next to the published ones, with verdicts and claims."""

import csv
import io
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from runner.system.schema import Record
from runner.system.text import duration, markdown_table, text_table
from runner.tables.cells import Decided, Line, TableState
from runner.tables.results import Result
from runner.tables.statistics import seeds_text
from runner.tables.table import BENCHMARK, COMPUTED, COUNT, LOWEST, SIMULATED
from runner.tables.verdict import CONFIDENCES

_HEADERS = ("row", "column", "kind", "ours", "published", "source", "difference", "verdict")
_CLAIM_HEADERS = ("claim", "verdict", "evidence")
_MOST_DECIMALS = 6
_SCALES = {"%": 100.0, "ms": 1000.0, "": 1.0}


def as_text(state: TableState) -> str:
    """Return the table for a terminal."""
    parts = [title_of(state), text_table(_HEADERS, map(_cells, state.lines), ruled=True)]
    if state.claims:
        parts.append(text_table(_CLAIM_HEADERS, map(_claim, state.claims), ruled=True))
    return "\n\n".join([*parts, "\n".join(_below(state))]) + "\n"


def as_markdown(state: TableState) -> str:
    """Return the table in GitHub-flavoured Markdown."""
    parts = [f"## {title_of(state)}", markdown_table(_HEADERS, map(_cells, state.lines))]
    if state.claims:
        parts.append(markdown_table(_CLAIM_HEADERS, map(_claim, state.claims)))
    return "\n\n".join([*parts, "\n".join(f"- {line}" for line in _below(state))]) + "\n"


def as_csv(state: TableState) -> str:
    """Return the lines of the table as CSV, with unrounded numbers."""
    stream = io.StringIO()
    rows = [_flat(line) for line in state.lines]
    writer = csv.DictWriter(stream, rows[0].keys() if rows else [])
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def as_json(state: TableState) -> str:
    """Return the lines of the table, the claims, and the origin of each result as JSON, with unrounded numbers."""
    runs = {
        run: [
            {"seed": seed, "file": os.path.relpath(found.files[seed]), **asdict(result.origin)}
            for seed, result in found.current.items()
        ]
        for run, found in state.results.items()
    }
    lines, claims = [Record(Line).write(line) for line in state.lines], [asdict(claim) for claim in state.claims]
    document = {"title": state.table.title, "kind": state.table.kind, "lines": lines, "claims": claims, "runs": runs}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def as_latex(state: TableState) -> str:
    """Return our values as a LaTeX table for the package booktabs, with the best values in bold."""
    table = state.table
    shown = {line.cell: line for line in state.lines}
    columns, best = shown_columns(state), best_cells(state)
    lines = [
        *(f"% {_one_line(text)}" for text in (title_of(state), table.reduced) if text),
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
            text = "" if line is None else _latex_value(line, len(table.seeds))
            cells.append(f"\\textbf{{\\boldmath {text}}}" if line is not None and line.cell in best else text)
        lines.append(" & ".join(cells) + " \\\\")
    note = f"\\multicolumn{{{1 + len(columns)}}}{{l}}{{\\footnotesize {_latex(reading_note(state))}}} \\\\"
    return "\n".join([*lines, "\\bottomrule", note, "\\end{tabular}"]) + "\n"


FORMATS = {"text": as_text, "md": as_markdown, "csv": as_csv, "json": as_json, "latex": as_latex}
"""Value of ``--format`` -> the function that makes the text."""


def title_of(state: TableState) -> str:
    """Return the title with the kind."""
    return f"{state.table.title} ({state.table.kind})"


def shown_columns(state: TableState) -> list[str]:
    """Return the columns that have a cell."""
    used = {column for _, column, _ in state.table.cells()}
    return [name for name in state.table.columns if name in used]


def best_cells(state: TableState) -> set[str]:
    """Return the cells with the best value of their column (in a benchmark, their row), for columns with ``best``."""
    groups: dict[tuple[str, str], dict[str, float]] = {}
    for line in state.lines:
        row, _, column = line.cell.partition("/")
        if (which := state.table.columns[column].best) and line.ours is not None:
            group = groups.setdefault((row if line.kind == BENCHMARK else column, which), {})
            group[line.cell] = line.ours
    extremes = {key: (min if key[1] == LOWEST else max)(group.values()) for key, group in groups.items()}
    return {cell for key, group in groups.items() for cell, ours in group.items() if ours == extremes[key]}


def reading_note(state: TableState) -> str:
    """Return a sentence about the values of the table: their kind, statistics, and number of seeds or rounds."""
    table = state.table
    if table.kind == COUNT:
        return "Count: sizes of networks, for which nothing is trained."
    if table.kind == SIMULATED:
        return "Simulated: times on described hardware, for which nothing is trained."
    medians = [column.title for column in table.columns.values() if column.statistic == "median"]
    center = "mean" if not medians else "median" if len(medians) == len(table.columns) else ""
    center = center or f"mean (median of {', '.join(medians)})"
    spread = " ± standard deviation" if len(table.seeds) > 1 else ""
    return f"{table.kind.capitalize()}: {center}{spread} over {seeds_text(len(table.seeds), table.repetition)}."


def _cells(line: Line) -> list[str]:
    apart = ""
    if line.difference is not None:
        apart = f"{100 * line.difference:+.2f} points" if line.unit == "%" else f"{line.difference:+.2%}"
    source = f"{line.source} [{line.confidence}]" if line.source else ""
    return [line.row, line.column, line.kind, _ours(line), line.published, source, apart, line.verdict]


def _ours(line: Line) -> str:
    """Return the text of our value with its number of seeds or rounds; without the number if no seed is used."""
    if line.sample is None or line.ours is None or line.kind in COMPUTED:
        return value_text(line)
    return f"{value_text(line)} (n={line.sample.n})"


def value_text(line: Line) -> str:
    """Return our mean with its standard deviation, our median with its range, or a count; "" if there is no value."""
    sample = line.sample
    if sample is None:
        return ""
    if line.kind == COUNT and not line.unit and sample.values[0].is_integer():
        return f"{sample.values[0]:,.0f}"
    if line.ours is None:
        return f"not finite ({sample.not_finite} of {sample.n})"
    scale, unit = _SCALES[line.unit], f" {line.unit}" if line.unit else ""
    if line.statistic == "median" and sample.smallest is not None and sample.largest is not None:
        low, high = scale * sample.smallest, scale * sample.largest
        return f"median {scale * line.ours:.4g}, range {low:.4g} to {high:.4g}{unit}"
    return _spread(scale * line.ours, None if sample.deviation is None else scale * sample.deviation) + unit


def _spread(center: float, deviation: float | None) -> str:
    """Return ``center`` ± ``deviation``, with two significant digits of the deviation and equally many decimals."""
    if deviation is None:
        return f"{center:.4g}"
    if deviation == 0:
        return f"{center:.4g} ± 0"
    decimals = max(0, 1 - int(f"{deviation:.1e}".partition("e")[2]))
    if decimals > _MOST_DECIMALS:
        return f"{center:.4g} ± {deviation:.2g}"
    return f"{center:.{decimals}f} ± {deviation:.{decimals}f}"


def _claim(claim: Decided) -> list[str]:
    return [claim.text, claim.verdict, claim.evidence]


def _flat(line: Line) -> dict[str, object]:
    """Return a line with the statistics of its sample as separate entries."""
    flat = {name: value for name, value in vars(line).items() if name != "sample"}
    sample, interval = line.sample, line.sample and line.sample.interval
    statistics = {name: getattr(sample, name, None) for name in ("mean", "median", "deviation")}
    bounds = {name: getattr(interval, name, None) for name in ("low", "high")}
    seeds, values = (0, []) if sample is None else (sample.n, list(sample.values))
    return {**flat, **statistics, **bounds, "seeds": seeds, "values": values}


def _below(state: TableState) -> Iterator[str]:
    """Yield the sentences below a table: verdicts, reasons, runs, note, and the meanings of confidence codes."""
    table = state.table
    yield f"{_tally(line.verdict for line in state.lines if line.verdict) or 'no verdicts'}."
    if state.claims:
        yield f"Claims: {_tally(claim.verdict for claim in state.claims)}."
    if table.reduced:
        yield f"Reduced: {table.reduced}"
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


def _tally(verdicts: Iterable[str]) -> str:
    return ", ".join(f"{word} ({count})" for word, count in Counter(verdicts).items())


def _origins(state: TableState) -> Iterator[str]:
    """Yield seeds, hours, machine and commit of the results; only the commit for simulations, nothing for counts."""
    found = [result for each in state.results.values() for result in each.current.values()]
    if state.table.kind == COUNT or not found:
        return
    if state.table.kind == SIMULATED:
        yield f"Commit {' and '.join(dict.fromkeys(_commit(result.origin.commit) for result in found))}."
        return
    seconds = sum(result.origin.seconds for result in found)
    seeds = ", ".join(map(str, state.table.seeds))
    machines = dict.fromkeys(_machine(result) for result in found)
    commits = dict.fromkeys(_commit(result.origin.commit) for result in found)
    word, libraries = f"{state.table.repetition.capitalize()}s", ""
    if state.table.kind == BENCHMARK:
        versions = dict.fromkeys(f"{name} {each}" for result in found for name, each in result.origin.versions.items())
        libraries = f"{', '.join(versions)}; "
    runs = f"{duration(seconds)} of runs on {' and '.join(machines)}"
    yield f"{word} {seeds}; {runs}; {libraries}commit {' and '.join(commits)}."
    changed = sum(result.origin.criteria != state.table.criteria() for result in found)
    if changed:
        yield f"{word}, columns, tolerances or claims of the file were changed after {changed} of {len(found)} runs."


def _commit(commit: str) -> str:
    """Return the first 12 digits of a commit, and its suffix, such as "-dirty"; "no commit" if it is empty."""
    name, _, mark = commit.partition("-")
    return "-".join(filter(None, (name[:12], mark))) or "no commit"


def _machine(result: Result) -> str:
    machine = result.origin.machine
    return f"{machine.get('cpu', 'an unknown machine')} with {machine.get('threads', '?')} thread(s) per worker"


def _latex_value(line: Line, seeds: int) -> str:
    """Return our value or, without one, the verdict. If some seeds are missing, the number of seeds follows."""
    text = value_text(line) if line.sample is None or line.sample.n == seeds else _ours(line)
    number = re.sub(r"(?<!\w)-(?=\d)", "\N{MINUS SIGN}", text or line.verdict)
    return re.sub(r"(?<=\d)e\+?(-?)0*(\d+)", r"$\\times 10^{\1\2}$", _latex(number))


_GREEK = ("alpha", "beta", "gamma", "delta", "epsilon", "eta", "theta", "mu", "sigma", "tau")
_IN_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    # A bracket or a star at the start of a row would be read as an option of the line break before it.
    "[": "{[}",
    "*": "{*}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "\\": "\\textbackslash{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    "±": "$\\pm$",
    "\N{MINUS SIGN}": "$-$",
    "\N{MULTIPLICATION SIGN}": "$\\times$",
    "\N{LESS-THAN OR EQUAL TO}": "$\\leq$",
    "\N{GREATER-THAN OR EQUAL TO}": "$\\geq$",
    **{unicodedata.lookup(f"GREEK SMALL LETTER {name}"): f"$\\{name}$" for name in _GREEK},
    "\N{GREEK SMALL LETTER LAMDA}": "$\\lambda$",
}


def _latex(text: str) -> str:
    """Return a text with the special characters of LaTeX escaped. Two hyphens are kept apart, so they make no dash."""
    return "".join(_IN_LATEX.get(character, character) for character in _one_line(text)).replace("--", "-{}-")


def _one_line(text: str) -> str:
    return " ".join(text.split())
