"""The YAML file of a table, ``conf/table/NAME.yaml``: found, read, and refused with all its faults."""

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from runner.config import safe_yaml
from runner.config.conf_dir import TABLES
from runner.errors import ConfigError
from runner.system.schema import LenientRecord, Violation
from runner.tables.table import (
    ADAPT,
    AT_MOST,
    BENCHMARK,
    COMPUTED,
    COUNT,
    EQUIVALENT,
    EXAMPLES,
    LIBRARY,
    METRIC,
    READINGS,
    SIMULATED,
    SIZES,
    SMALL,
    TIMES,
    UPDATES,
    WEIGHT_DIFFERENCE,
    Claim,
    Column,
    Table,
)
from runner.tables.verdict import Published, number_of, tolerance_of

_ONLY_RATIOS = {SMALL: "a value in small supports", BENCHMARK: "times on two machines support"}
"""Kind of tables whose values are not compared with published ones -> the reason."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


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
    for kind, names in (("runs", table.runs), ("columns", table.columns), ("rows", table.rows)):
        for name in (each for each in names if not _NAME.fullmatch(each)):
            yield f"{kind}: {name!r}, expected a name of letters, digits and _ . -, because it names folders and cells"
    yield from _faults_of_runs(table)
    for name, column in table.columns.items():
        yield from (f"columns.{name}.{fault}" for fault in _faults_of_column(column, table))
    for name, row in table.rows.items():
        if row.run and row.run not in table.runs:
            yield f"rows.{name}.run: {row.run!r}, expected one of the runs {', '.join(table.runs)}"
        if bool(row.run) == bool(row.missing):
            yield f"rows.{name}: expected a run, or the reason `missing` why there is none"
        for column_name in row.cells.keys() - table.columns.keys():
            yield f"rows.{name}.cells.{column_name}: expected one of the columns {', '.join(table.columns)}"
    for row_name, column_name, cell in table.cells():
        run = table.runs.get(table.rows[row_name].run)
        if table.columns[column_name].read == WEIGHT_DIFFERENCE and run is not None and not run.against:
            yield f"rows.{row_name}.cells.{column_name}: reads {WEIGHT_DIFFERENCE}, but the run has no key `against`"
        for place, published in enumerate(cell.published):
            where = f"rows.{row_name}.cells.{column_name}.published[{place}]"
            yield from (f"{where}.{fault}" for fault in _faults_of(published, table.columns[column_name], table))
    for name, claim in table.claims.items():
        yield from (f"claims.{name}.{fault}" for fault in _faults_of_claim(claim, table))


def _faults_of_runs(table: Table) -> Iterator[str]:
    if (table.kind in COMPUTED) == bool(table.seeds):
        expected = f"none for the kind {table.kind}" if table.kind in COMPUTED else "a list such as [1, 2, 3, 4, 5]"
        yield f"seeds: {list(table.seeds)}, expected {expected}"
    if len(set(table.seeds)) < len(table.seeds):
        yield f"seeds: {list(table.seeds)}, expected each seed once"
    if (table.kind == SMALL) != bool(table.reduced):
        yield f"reduced: {table.reduced!r}, expected what is smaller than in the paper, for the kind {SMALL} only"
    used = {row.run for row in table.rows.values()}
    used |= {run.against for run in table.runs.values()} | {column.relative_to for column in table.columns.values()}
    earlier: list[str] = []
    for name, run in table.runs.items():
        if name not in used:
            yield f"runs.{name}: no row reads this run"
        if run.against and run.against not in earlier:
            yield f"runs.{name}.against: {run.against!r}, expected an earlier run, {' or '.join(earlier)}"
        earlier.append(name)


def _faults_of_column(column: Column, table: Table) -> Iterator[str]:
    is_metric = METRIC.fullmatch(column.read) is not None
    if bool(column.read) == bool(column.missing):
        yield f"read: {column.read!r}, expected what the cells read, or instead the reason `missing`"
    elif column.missing:
        return
    if table.kind == BENCHMARK:
        if not LIBRARY.fullmatch(column.read):
            yield f"read: {column.read!r}, expected a library such as torch-eager in a benchmark"
    elif table.kind == COUNT:
        if column.read not in SIZES:
            yield f"read: {column.read!r}, expected one of {', '.join(SIZES)} in a table of counts"
    elif table.kind == SIMULATED:
        if column.read not in TIMES:
            yield f"read: {column.read!r}, expected one of {', '.join(TIMES)} in a table of simulations"
    elif column.read not in READINGS and not is_metric:
        yield f"read: {column.read!r}, expected a metric such as test/accuracy, or one of {', '.join(READINGS)}"
    if column.at and not (is_metric and len(column.at) == 1 and column.at.keys() <= {UPDATES, EXAMPLES}):
        yield f"at: {column.at}, expected {{{UPDATES}: N}} or {{{EXAMPLES}: N}}, for a metric"
    if column.gain and not column.relative_to:
        yield "gain: True, expected only with `relative_to`"
    if column.relative_to and column.relative_to not in table.runs:
        yield f"relative_to: {column.relative_to!r}, expected one of the runs {', '.join(table.runs)}"


def _faults_of(published: Published, column: Column, table: Table) -> Iterator[str]:
    if published.paper not in table.papers:
        yield f"paper: {published.paper!r}, expected one of {', '.join(table.papers)}"
    if table.kind in _ONLY_RATIOS and published.tolerance and not column.relative_to:
        yield f"tolerance: {published.tolerance!r}, expected none: {_ONLY_RATIOS[table.kind]} only an order or a ratio"
    try:
        number_of(published.printed)
        tolerance_of(published)
    except ValueError as error:
        yield str(error)


def _faults_of_claim(claim: Claim, table: Table) -> Iterator[str]:
    known = [f"{row}/{column}" for row, column, _ in table.cells()]
    for cell in claim.cells:
        if cell not in known:
            close = difflib.get_close_matches(cell, known, n=1)
            yield f"cells: {cell!r}, which the table does not have" + (f"; did you mean {close[0]!r}?" if close else "")
    least, exact = (1, False) if claim.relation == AT_MOST else (2, claim.relation == EQUIVALENT)
    if len(claim.cells) < least or (exact and len(claim.cells) > least):
        yield f"cells: {list(claim.cells)}, expected {least}{'' if exact else ' or more'} for {claim.relation}"
    for name, relation in (("margin", EQUIVALENT), ("limit", AT_MOST)):
        value = getattr(claim, name)
        if (value is not None) != (claim.relation == relation):
            expected = "a number" if claim.relation == relation else "none"
            yield f"{name}: {value}, expected {expected} for {claim.relation}"
    if claim.margin is not None and not claim.margin > 0:
        yield f"margin: {claim.margin}, expected a number above 0"
    if table.kind == COUNT and claim.relation != AT_MOST:
        yield f"relation: {claim.relation!r}, expected {AT_MOST} in a table of counts, which have no seeds"
    columns = [table.columns[cell.partition("/")[2]] for cell in claim.cells if cell in known]
    if len({(_quantity(column, table), column.unit) for column in columns}) > 1:
        yield f"cells: {list(claim.cells)}, expected cells of one quantity"
    if claim.relation == AT_MOST and table.kind == SMALL and not all(column.relative_to for column in columns):
        yield f"relation: {AT_MOST!r}, expected another: {_ONLY_RATIOS[SMALL]} only an order or a ratio"


def _quantity(column: Column, table: Table) -> tuple[object, ...]:
    if table.kind == BENCHMARK:
        return ()
    # "adapt/METHOD/METRIC" is the same quantity for all methods.
    section, _, metric = column.read.partition("/")
    read = (section, metric.partition("/")[2]) if section == ADAPT else column.read
    return read, column.relative_to, column.gain
