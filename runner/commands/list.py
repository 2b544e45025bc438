"""The verb ``list``: the options of each group, one line per option, from the option classes and the YAML files."""

import inspect
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.callback import CALLBACKS
from runner.config.conf_dir import yaml_folders
from runner.config.groups import GROUPS
from runner.system.console import add_yaml_options, verb_parser
from runner.system.text import text_table

KINDS = {
    "tasks": "task",
    "models": "model",
    "data": "data",
    "optimizers": "optimizer",
    "schedules": "schedule",
    "strategies": "parallelism",
    "callbacks": "callbacks",
    "experiments": "experiment",
    "debug": "debug",
}
"""Kind (the argument of ``runner list``) -> the group of the configuration whose options are listed."""

_EXAMPLE = """\
examples:
  runner list
  runner list optimizers
  runner list experiments --config-dir my_configs"""


def main(arguments: Sequence[str]) -> int:
    """Print the options of one kind or, without a kind, the names of all kinds."""
    parser = verb_parser("list", "List the options of a kind, or, without an argument, the kinds.", _EXAMPLE)
    parser.add_argument("kind", nargs="?", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    add_yaml_options(parser, ", which are also listed")
    options = parser.parse_args(arguments)
    folders = yaml_folders(options.config_dir)
    # config.yaml names all groups except ``debug``, so only an option of this group has to be added.
    keys = {kind: "+debug" if group == "debug" else group for kind, group in KINDS.items()}
    if options.kind is None:
        rows = [(kind, str(len(lines(kind, folders))), f"{key}=NAME") for kind, key in keys.items()]
        print(text_table(("kind", "options", "chosen by"), rows))
    else:
        print(text_table((f"{keys[options.kind]}=", ""), list(lines(options.kind, folders).items())))
    return 0


def lines(kind: str, folders: Sequence[Path]) -> dict[str, str]:
    """Return option -> first line of its class docstring or, without a class, first sentence of its YAML comment."""
    group = KINDS[kind]
    table: Mapping[str, type] = CALLBACKS if group == "callbacks" else GROUPS.get(group, {})
    documented = {name: inspect.getdoc(schema) or "" for name, schema in table.items()}
    found = {name: text.partition("\n")[0].replace("``", "") for name, text in documented.items()}
    for folder in folders:
        for file in sorted((folder / group).glob("*.yaml")):
            found.setdefault(file.stem, leading_comment(file))
    return found


def leading_comment(file: Path) -> str:
    """Return the first sentence of the comment at the beginning of a YAML file; "" if there is none.

    Indented lines, such as commands, are skipped.
    """
    comment = itertools.takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    prose = [line[2:] for line in comment if not line.startswith(("# @package", "#  "))]
    # A full stop within a sentence, as in "et al. 2012", is not followed by a capital letter.
    return re.split(r"(?<=[.?!]) (?=[A-Z])", " ".join(prose), maxsplit=1)[0]
