"""The YAML file of a table, ``conf/table/NAME.yaml``: papers, runs, and the cells that read values from the runs."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.config import safe_yaml
from runner.config.conf_dir import TABLES
from runner.errors import ConfigError
from runner.system.schema import LenientRecord, Violation
from runner.tables.verdict import CONFIDENCES, Published, number_of, tolerance_of

COUNT = "count"
KINDS = (COUNT,)
"""Kinds of tables. A value is never shown without its kind. count: sizes of networks, for which nothing is trained."""

PARAMETERS, MULTIPLY_ADDS = READINGS = ("parameters", "multiply_adds")
"""What a column reads from a network: trained values, and multiply-adds of the forward pass of one example."""


@dataclass(frozen=True)
class Paper:
    """A source of published values. cite: authors, title and identifier. where: the section that states the values."""

    cite: str
    where: str = ""


@dataclass(frozen=True)
class Run:
    """A configuration, the unit that is executed. overrides: follow those of the table."""

    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column:
    """What the cells of a column read, one of :data:`READINGS`. layers: kinds of layers that count; () for all."""

    title: str
    read: str
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """A value of a run, and the values that papers state for it."""

    published: tuple[Published, ...] = ()


@dataclass(frozen=True)
class Row:
    """A row. run: the run that its cells read; "" if there is none yet. missing: the reason for that."""

    title: str
    run: str = ""
    missing: str = ""
    cells: dict[str, Cell] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """The content of the file.

    base: overrides of all runs. papers, runs, columns: by the names with which cells refer to them. rows: in the order
    of the table. note: a sentence below the table.
    """

    title: str
    kind: str
    papers: dict[str, Paper]
    columns: dict[str, Column]
    rows: dict[str, Row]
    runs: dict[str, Run] = field(default_factory=dict)
    base: tuple[str, ...] = ()
    note: str = ""

    def cells(self) -> Iterator[tuple[str, str, Cell]]:
        """Yield (row, column, cell) in the order of the table."""
        for name, row in self.rows.items():
            for column in (each for each in self.columns if each in row.cells):
                yield name, column, row.cells[column]

    def overrides(self, run: str) -> list[str]:
        """Return all overrides of a run."""
        return [*self.base, *self.runs[run].overrides]


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
    if faults := list(_faults(table)):
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))
    return table


def _faults(table: Table) -> Iterator[str]:
    if table.kind not in KINDS:
        yield f"kind: {table.kind!r}, expected one of {', '.join(KINDS)}"
    for name, column in table.columns.items():
        if column.read not in READINGS:
            yield f"columns.{name}.read: {column.read!r}, expected one of {', '.join(READINGS)}"
    for name, row in table.rows.items():
        if row.run and row.run not in table.runs:
            yield f"rows.{name}.run: {row.run!r}, expected one of the runs {', '.join(table.runs)}"
        if bool(row.run) == bool(row.missing):
            yield f"rows.{name}: expected a run, or the reason `missing` why there is none"
        for column_name in row.cells.keys() - table.columns.keys():
            yield f"rows.{name}.cells.{column_name}: expected one of the columns {', '.join(table.columns)}"
    unused = table.runs.keys() - {row.run for row in table.rows.values()}
    for name in sorted(unused):
        yield f"runs.{name}: no row reads this run"
    for row_name, column_name, cell in table.cells():
        for place, published in enumerate(cell.published):
            where = f"rows.{row_name}.cells.{column_name}.published[{place}]"
            yield from (f"{where}.{fault}" for fault in _faults_of(published, table))


def _faults_of(published: Published, table: Table) -> Iterator[str]:
    if published.paper not in table.papers:
        yield f"paper: {published.paper!r}, expected one of {', '.join(table.papers)}"
    if published.confidence not in CONFIDENCES:
        yield f"confidence: {published.confidence!r}, expected one of {', '.join(CONFIDENCES)}"
    try:
        number_of(published.printed)
        tolerance_of(published)
    except ValueError as error:
        yield str(error)
