"""The verb ``new``: write a commented template of a plugin or a table, and print the command that runs it."""

import keyword
import string
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from runner.config.conf_dir import TABLES, conf_dir
from runner.errors import ConfigError
from runner.system.console import verb_parser
from runner.system.files import writing


@dataclass(frozen=True)
class Kind:
    """A kind of template. text: its description. group: the configuration group of its option NAME + ``suffix``."""

    text: str
    group: str
    suffix: str = ""


KINDS = {
    "task": Kind("fields, loss and metrics of a network", "task"),
    "model": Kind("a network", "model"),
    "optimizer": Kind("an update rule", "optimizer"),
    "schedule": Kind("a schedule of the learning rate", "schedule"),
    "dataset": Kind("a dataset generated or read by code", "data"),
    "strategy": Kind("a way to train in parallel", "parallelism"),
    "callback": Kind("functions called during a run, which can end it", "callbacks"),
    "op": Kind("an op with gradient and kernel, and a model that uses it", "model", "_net"),
    TABLES: Kind("a table of training runs, without Python", TABLES),
}


_YAML = {"callback": "callback.yaml.txt", TABLES: "table.yaml.txt"}
"""Kind -> template of its YAML file, if this is not ``option.yaml.txt``."""


def main(arguments: Sequence[str]) -> int:
    """Write NAME.py, except for a table, and conf/GROUP/NAME.yaml into the working directory; print how to run them.

    Raises ConfigError if the name is unusable or a file exists, ResourceError if a file cannot be written.
    """
    parser = verb_parser(
        "new",
        "Write a commented template, NAME.py and conf/GROUP/NAME.yaml, and print how to run it. A table is only YAML.",
        "kinds:\n"
        + "\n".join(f"  {name:10} {kind.text}" for name, kind in KINDS.items())
        + "\n\nexample:\n  runner new model my_net",
    )
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("name", metavar="NAME", help="lowercase letters, digits and underscores, such as my_net")
    options = parser.parse_args(arguments)
    kind, name = KINDS[options.kind], options.name
    _require_free(options.kind, name)
    texts = starting_point(options.kind, name)
    _write(texts)
    for path in texts:
        print(f"wrote {path}")
    if options.kind == TABLES:
        print(f"run it: runner table run {name} --config-dir conf")
        print(f"export it: runner table export {name} --config-dir conf --format latex --output {name}.tex")
    else:
        print(f"run it: runner --plugin {name}.py --config-dir conf {kind.group}={name}{kind.suffix} train.steps=20")
    return 0


def starting_point(kind: str, name: str) -> dict[Path, str]:
    """Return path in the working directory -> text of the YAML file and, except for a table, of the Python file."""
    group, option = KINDS[kind].group, name + KINDS[kind].suffix
    words = {"name": name, "cls": string.capwords(name, "_").replace("_", ""), "group": group, "option": option}
    code = {} if kind == TABLES else {Path(f"{name}.py"): _template(f"{kind}.py.txt").substitute(words)}
    yaml = _template(_YAML.get(kind, "option.yaml.txt")).substitute(words)
    return {**code, Path("conf", group, f"{option}.yaml"): yaml}


def _template(name: str) -> string.Template:
    return string.Template(files("runner.commands").joinpath("templates", name).read_text(encoding="utf-8"))


def _require_free(kind: str, name: str) -> None:
    """Raise ConfigError for an invalid name, or a name that runner already uses."""
    from runner.config.groups import GROUPS
    from runner.engine.graph.op import OPS
    from runner.plugin.contract import NAME
    from runner.tables.table_file import table_names

    if NAME.fullmatch(name) is None or keyword.iskeyword(name):
        raise ConfigError(
            f"name {name!r}: expected lowercase letters, digits and underscores, such as my_{kind}, starting with a "
            "letter; Python keywords are not allowed"
        )
    built_in: Collection[str] = table_names([conf_dir()]) if kind == TABLES else GROUPS.get(KINDS[kind].group, {})
    if name in (OPS if kind == "op" else built_in):
        raise ConfigError(f"name {name!r} is the name of a built-in {kind}; choose another, such as my_{name}")


def _write(texts: dict[Path, str]) -> None:
    """Create all files, or none if one of them exists."""
    for path in texts:
        if path.exists() or path.is_symlink():
            raise ConfigError(f"{path} exists; choose another name, or move the file")
    for path, text in texts.items():
        with writing(str(path), "change to a writable folder"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
