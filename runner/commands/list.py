"""The verb ``list``: what there is to choose from, a line each, from the tables and the YAML files themselves."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.config.conf_dir import conf_dir
from runner.config.configuration import GROUPS
from runner.system.console import verb_parser
from runner.system.text import text_table

KINDS = {
    "models": "model",
    "data": "data",
    "optimizers": "optimizer",
    "schedules": "schedule",
    "strategies": "parallelism",
    "experiments": "experiment",
    "debug": "debug",
}
"""What can be listed -> its group of the configuration."""

_CHOSEN_BY = {"debug": "+debug"}
"""Groups from which nothing is chosen unless the command line adds it."""

_EXAMPLE = """\
examples:
  runner list
  runner list optimizers
  runner list experiments --config-dir my_configs"""


def main(arguments: Sequence[str]) -> int:
    """Print the options of one kind, or the kinds."""
    parser = verb_parser(
        "list", "List what a configuration can choose from, a line each; without an argument the kinds.", _EXAMPLE
    )
    parser.add_argument("kind", nargs="?", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--config-dir", "-cd", type=Path, metavar="DIR", help="YAML files of your own, listed too")
    options = parser.parse_args(arguments)
    folders = [conf_dir(), *([options.config_dir] if options.config_dir else [])]
    print(kinds_text(folders) if options.kind is None else options_text(options.kind, folders))
    return 0


def kinds_text(folders: Sequence[Path]) -> str:
    """A row for each kind: how many there are, and how one is chosen."""
    rows = [(kind, str(len(lines(kind, folders))), f"{_key(kind)}=NAME") for kind in KINDS]
    return text_table(("kind", "options", "chosen by"), rows)


def options_text(kind: str, folders: Sequence[Path]) -> str:
    """A row for each option of a kind."""
    return text_table((f"{_key(kind)}=", ""), list(lines(kind, folders).items()))


def lines(kind: str, folders: Sequence[Path]) -> dict[str, str]:
    """Option -> one line: the first of a table entry's docstring, or the leading comment of another YAML file."""
    group = KINDS[kind]
    table: Mapping[str, type] = GROUPS.get(group, {})
    found = {name: _first_line(inspect.getdoc(schema) or "") for name, schema in table.items()}
    for folder in folders:
        for file in sorted((folder / group).glob("*.yaml")):
            found.setdefault(file.stem, leading_comment(file))
    return found


def leading_comment(file: Path) -> str:
    """The first sentence of the comment a YAML file begins with; "" where it begins with none.

    Lines that are indented, such as commands, are no part of it.
    """
    comment = itertools.takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    prose = [line[2:] for line in comment if not line.startswith(("# @package", "#  "))]
    # A full stop inside of a sentence, as in "et al. 2012", is followed by no capital.
    return re.split(r"(?<=[.?!]) (?=[A-Z])", " ".join(prose), maxsplit=1)[0]


def _first_line(documentation: str) -> str:
    return documentation.partition("\n")[0].replace("``", "")


def _key(kind: str) -> str:
    return _CHOSEN_BY.get(kind, KINDS[kind])
