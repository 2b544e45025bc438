"""The verb ``table``: tables of papers, rebuilt from stored configurations."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.commands.stored_network import write_output
from runner.config.conf_dir import conf_dir
from runner.config.schema import Config
from runner.system.console import verb_parser
from runner.system.text import text_table
from runner.tables.rendering import FORMATS, Line, lines
from runner.tables.results import Result, changes, read_results, write_result
from runner.tables.sizes import composed, counted
from runner.tables.table_file import Table, find_table, read_table, table_names

_EXAMPLE = """\
examples:
  runner table list
  runner table show network_sizes
  runner table run network_sizes
  runner table export network_sizes --format md --output sizes.md"""


def main(arguments: Sequence[str]) -> int:
    """Run ``runner table`` with the arguments that follow it."""
    parser = verb_parser("table", "Published tables beside the values of stored configurations.", _EXAMPLE)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    listed = verbs.add_parser("list", help="list the tables and how many of their values exist")
    shown = verbs.add_parser("show", help="print a table")
    ran = verbs.add_parser("run", help="compute the missing and stale values of a table")
    exported = verbs.add_parser("export", help="write a table to a file")
    for each in (shown, ran, exported):
        each.add_argument("name", metavar="NAME", help="the table")
    for each in (listed, shown, ran, exported):
        each.add_argument("--config-dir", "-cd", type=Path, metavar="DIR", help="your own YAML files, with DIR/table")
    exported.add_argument("--format", choices=sorted(FORMATS), default="md", help="default: md")
    exported.add_argument("--output", type=Path, metavar="FILE", help="file to write (default: print)")
    options = parser.parse_args(arguments)
    folders = [conf_dir(), *([options.config_dir.absolute()] if options.config_dir else [])]
    if options.verb == "list":
        print(_list(folders))
        return 0
    path = find_table(options.name, folders)
    table = read_table(path)
    configs = composed(table)
    if options.verb == "run":
        _run(table, path, configs)
    text = FORMATS[options.format if options.verb == "export" else "text"](table, current_lines(table, path, configs))
    if options.verb == "export" and options.output is not None:
        write_output(options.output, text)
    else:
        print(text, end="")
    return 0


def current_lines(table: Table, path: Path, configs: Mapping[str, Config]) -> list[Line]:
    """Return the lines of a table with the stored results; results of changed configurations are stale.

    configs: run -> its present configuration.
    """
    results = read_results(path)
    known = {run: results[run] for run in configs if run in results}
    reasons = {run: _out_of_date(table, result, configs[run]) for run, result in known.items()}
    return list(lines(table, results, {run: reason for run, reason in reasons.items() if reason}))


def _list(folders: list[Path]) -> str:
    rows = []
    for name, path in table_names(folders).items():
        table = read_table(path)
        results = read_results(path)
        cells = list(table.cells())
        exist = sum(table.rows[row].run in results for row, _, _ in cells)
        rows.append((name, table.kind, f"{exist} of {len(cells)}", table.title))
    return text_table(("table", "kind", "values", "title"), rows)


def _run(table: Table, path: Path, configs: Mapping[str, Config]) -> None:
    """Compute the values of runs without a current result, one after another; each is written at once."""
    results = read_results(path)
    for run, config in configs.items():
        if run not in results or _out_of_date(table, results[run], config):
            written = write_result(path, run, counted(config, table.columns))
            print(f"{run}: {written}", file=sys.stderr, flush=True)


def _out_of_date(table: Table, result: Result, config: Config) -> str:
    """Return the reason why a stored result does not hold for the table; "" if it holds."""
    if lacking := table.columns.keys() - result.values.keys():
        return f"the value of {', '.join(sorted(lacking))} was not computed"
    keys = changes(result, config)
    return f"the configuration changed in {', '.join(keys)} since the value was computed" if keys else ""
