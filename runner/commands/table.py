"""The verb ``table``: tables of papers, rebuilt from stored configurations."""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from runner.commands.stored_network import write_output
from runner.commands.table_files import TableFiles, TableReader, current
from runner.commands.table_run import TableSweep, run_table
from runner.config.conf_dir import yaml_folders
from runner.config.schema import worker_processes
from runner.engine.graph import GPU
from runner.errors import ConfigError, DataError, RunnerError
from runner.system.console import add_yaml_options, parse_subcommand, verb_parser
from runner.system.text import duration, text_table
from runner.tables.cells import TableState
from runner.tables.checking import REFUSED, STALE, checks
from runner.tables.picture import PNG, as_png
from runner.tables.rendering import FORMATS, as_text
from runner.tables.results import RunResults
from runner.tables.table import BENCHMARK, COMPUTED, Table
from runner.tables.table_file import find_table, table_names

_EXAMPLE = """\
examples:
  runner table list
  runner table show network_sizes
  runner table run whitepaper_batch --budget 2h
  runner table export network_sizes --format md --output sizes.md
  runner table export network_sizes --format png --output sizes.png"""

_RUN = """\
Train each run of the table with each seed, as jobs of a sweep in multirun/table/NAME, unless the result exists. If the
command is interrupted, start it again to continue. Overrides choose the launcher, as in hydra/launcher=joblib
hydra.launcher.n_jobs=2."""


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    folders = yaml_folders(options.config_dir)
    reader = TableReader(options.config_dir, options.results)
    if options.verb == "list":
        print(_list(table_names(folders), reader))
        return 0
    if options.verb == "check":
        names = table_names(folders) if options.all else [options.name]
        return _check({name: find_table(name, folders) for name in names}, reader)
    files = reader.read(find_table(options.name, folders))
    code = 0
    if options.verb == "run":
        sweep = TableSweep(files, options.overrides, options.config_dir, options.budget, debug=options.debug)
        code = run_table(files, _runs(files.table, options.cells), sweep)
    if options.verb == "export":
        _export(current(files), options.format, options.output)
    else:
        print(as_text(current(files)), end="")
    return code


def _export(state: TableState, form: str, path: Path | None) -> None:
    if form == PNG and path is None:
        raise ConfigError("--format png: expected also --output FILE, such as --output table.png")
    content = as_png(state) if form == PNG else FORMATS[form](state).encode()
    if path is None:
        print(content.decode(), end="")
    else:
        write_output(path, content)


def _runs(table: Table, cells: Sequence[str] | None) -> list[str]:
    """Return the runs that the chosen cells read, which columns of published values do not.

    cells: patterns ROW or ROW/COLUMN; None for all.
    """
    every = [(f"{row}/{column}", table.rows[row].run, column) for row, column, _ in table.cells()]
    found = set()
    for given in cells or ["*"]:
        chosen = [each for each in every if any(fnmatchcase(each[0], pattern) for pattern in (given, f"{given}/*"))]
        if not chosen:
            raise ConfigError(f"--cells {given}: no such cell; expected one of {', '.join(each[0] for each in every)}")
        for _, run, column in chosen:
            if table.columns[column].read:
                found |= {run, table.columns[column].relative_to}
    return [run for run in table.runs if run in found]


def _list(paths: Mapping[str, Path], reader: TableReader) -> str:
    """Return a line for each table, and below them the errors of tables that cannot be read or composed."""
    rows, notes = [], []
    for name, path in paths.items():
        try:
            files = reader.read(path)
            state = current(files)
            rest = _rest(files, state.results)
        except RunnerError as error:
            rows.append((name, "", "", "", "", "", "", "see the error below"))
            notes.append(f"{name}: {error}")
            continue
        values = {line.cell: line.sample is not None for line in state.lines}
        held = [claim.verdict for claim in state.claims]
        claims = f"{held.count('holds')} of {len(held)}" if held else ""
        exist = f"{sum(values.values())} of {len(values)}"
        rows.append((name, state.table.kind, exist, claims, *rest, state.table.title))
    if any(_UNKNOWN in row[5] and row[1] not in (*COMPUTED, BENCHMARK) for row in rows):
        notes.append(_ESTIMATE)
    headers = ("table", "kind", "values", "claims hold", "to run", "time", "needs", "title")
    return "\n\n".join([text_table(headers, rows), *notes])


_UNKNOWN = "unknown"
_ESTIMATE = (
    f"time {_UNKNOWN}: no seed was run. `runner table run NAME --budget 0s` estimates the time by a few updates, of a "
    "smaller batch if the memory of this machine requires it."
)


def _rest(files: TableFiles, results: Mapping[str, RunResults]) -> tuple[str, str, str]:
    """Return three texts on the missing results: number of runs, estimated time, and required data and hardware."""
    seeds = files.table.seeds or (None,)
    lacking = {run: len(set(seeds) - found.current.keys()) for run, found in results.items()}
    lacking = {run: count for run, count in lacking.items() if count}
    if not lacking:
        return "", "", ""
    seconds = files.seconds(results)
    unknown = sum(count for run, count in lacking.items() if run not in seconds)
    known = sum(count * seconds[run] for run, count in lacking.items() if run in seconds)
    time = [f"about {duration(known)}"] if lacking.keys() & seconds.keys() else []
    time += [f"{_UNKNOWN} for {unknown}" if time else _UNKNOWN] if unknown else []
    return str(sum(lacking.values())), ", ".join(time), ", ".join(_needs(files, list(lacking)))


def _needs(files: TableFiles, runs: Sequence[str]) -> Iterator[str]:
    """Yield the requirements of runs: the largest number of workers, a GPU, memory, and data that are missing here."""
    configs = [files.configs[run] for run in runs]
    most = max(configs, key=worker_processes)
    workers, threads = worker_processes(most), most.cluster.threads_per_worker
    if files.table.kind not in (*COMPUTED, BENCHMARK):
        yield f"{workers} worker{'s' * (workers > 1)} with {threads} thread{'s' * (threads > 1)}"
    if any(config.cluster.device == GPU for config in configs):
        yield "GPU"
    if memory := [files.table.runs[run].memory_gib for run in runs if files.table.runs[run].memory_gib is not None]:
        yield f"{max(each for each in memory if each is not None):g} GiB"
    for data in {config.data.name: config.data for config in configs}.values():
        try:
            data.require_present()
        except DataError:
            yield f"data={data.name}"


def _check(paths: Mapping[str, Path], reader: TableReader) -> int:
    """Print the state of each run of the tables; return 1 if one is stale or refused, otherwise 0."""
    rows = []
    for name, path in paths.items():
        try:
            files = reader.read(path)
            for run, state, reason in checks(files.table, files.configs, files.results()):
                print(f"{name}/{run}: {state}", file=sys.stderr, flush=True)
                rows.append((name, run, state, reason))
        except RunnerError as error:
            rows.append((name, "", REFUSED, str(error)))
    shown = [(*row[:3], " ".join(row[3].split())) for row in rows]
    print(text_table(("table", "run", "state", "reason"), shown))
    return int(any(state in (STALE, REFUSED) for _, _, state, _ in rows))


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number with s, m or h, such as 2h")
    return float(match[1]) * _UNITS[match[2]]


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = verb_parser("table", "Published tables next to the values of stored configurations.", _EXAMPLE)
    parser.add_argument("--debug", action="store_true", help="show the traceback of a job that fails")
    verbs = parser.add_subparsers(dest="verb", required=True)
    listed = verbs.add_parser("list", help="list the tables with the numbers of existing values and of claims")
    shown = verbs.add_parser("show", help="print a table")
    ran = verbs.add_parser("run", help="compute the missing values of a table", description=_RUN)
    checked = verbs.add_parser("check", help="plan each run, make two steps, and compare stored results with this code")
    checked.add_argument("name", metavar="NAME", nargs="?", help="the table")
    checked.add_argument("--all", action="store_true", help="all tables")
    exported = verbs.add_parser("export", help="write a table to a file")
    for each in (shown, ran, exported):
        each.add_argument("name", metavar="NAME", help="the table")
    for each in (listed, shown, ran, checked, exported):
        add_yaml_options(each, ", with DIR/table")
        each.add_argument("--results", type=Path, metavar="DIR", help="folder of results (default: the committed ones)")
    ran.add_argument("--cells", action="append", metavar="ROW[/COLUMN]", help="only these cells; * matches any text")
    ran.add_argument("--budget", type=_seconds, metavar="TIME", help="limit of the sum of estimated times, such as 2h")
    ran.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the launcher")
    exported.add_argument("--format", choices=sorted([*FORMATS, PNG]), default="md", help="default: md")
    exported.add_argument("--output", type=Path, metavar="FILE", help="file (default: print; png needs a file)")
    options = parse_subcommand(parser, arguments)
    if options.verb == "check" and bool(options.name) == options.all:
        checked.error("expected the name of a table, or --all")
    return options
