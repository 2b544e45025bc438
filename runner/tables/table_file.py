"""The YAML file of a table, ``conf/table/NAME.yaml``: functions that find, read and check it."""

import difflib
from collections.abc import Sequence
from pathlib import Path

from runner.config import safe_yaml
from runner.config.conf_dir import TABLES
from runner.errors import ConfigError
from runner.system.schema import LenientRecord, Violation
from runner.tables.table import Table, faults_of


def table_names(folders: Sequence[Path]) -> dict[str, Path]:
    """Return name -> file of the tables in folders of YAML files; a later folder replaces tables of earlier ones."""
    return {file.stem: file for folder in folders for file in sorted((folder / TABLES).glob("*.yaml"))}


def find_table(name: str, folders: Sequence[Path]) -> Path:
    """Return the file of a table. Raises ConfigError, naming similar tables, if there is none."""
    found = table_names(folders)
    if name not in found:
        close = difflib.get_close_matches(name, found, n=1)
        hint = f"did you mean {close[0]!r}? Expected" if close else "expected"
        raise ConfigError(f"no table {name!r}: {hint} one of {', '.join(found) or 'none'}")
    return found[name]


def read_table(path: Path) -> Table:
    """Read the file of a table. Raises one ConfigError for all faults of its references and values."""
    plain = safe_yaml.load(path)
    try:
        table = LenientRecord(Table, complete=False).read(plain)
    except Violation as violation:
        raise ConfigError(f"{path}: {violation}") from violation
    if faults := list(faults_of(table)):
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))
    return table
