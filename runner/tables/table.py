"""A table as data: papers, runs, cells that read values of runs, and claims about cells. Also the check for faults."""

import difflib
import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated

from runner.system.schema import OneOf
from runner.tables.statistics import ROUND, SEED
from runner.tables.verdict import Published, number_of, tolerance_of

COUNT, SIMULATED, MEASURED, SMALL, BENCHMARK = KINDS = ("count", "simulated", "measured", "small", "benchmark")
"""Kinds of tables. A value is never shown without its kind.

count: sizes of networks, for which nothing is trained. simulated: times on described hardware, for which nothing is
trained either. measured: values of training runs. small: values of training runs with a smaller network, a smaller
dataset or fewer epochs than in the paper. These values support only an order or a ratio.
benchmark: seconds of a step (forward and backward pass, no update) of runner and other libraries on one machine.
"""

COMPUTED = (COUNT, SIMULATED)
"""Kinds of tables whose values do not depend on a seed."""

PARAMETERS, MULTIPLY_ADDS = SIZES = ("parameters", "multiply_adds")
"""Values that a column of counts can read: trained values, and multiply-adds of the forward pass of one example."""

UPDATE_TIME, HOURS, EXAMPLES_PER_S, STEP_MEDIAN, STEP_P90 = TIMES = (
    "update_s",
    "hours",
    "examples_per_s",
    "worker_step_median_s",
    "worker_step_p90_s",
)
"""Values that a column of simulations can read: seconds of an update, hours of the whole training without evaluations,
examples per second, and median and 90th percentile of the seconds between the starts of two steps of a worker."""

STEP_TIME, _ = SPEEDS = ("step_time_s", EXAMPLES_PER_S)
WEIGHT_DIFFERENCE = "weight_difference"
READINGS = (*SPEEDS, WEIGHT_DIFFERENCE)
"""Values that a column of training runs can read besides metrics such as test/accuracy: the median seconds of a step,
training examples per second of step time, and the largest absolute difference between the weights of two runs."""

UPDATES, EXAMPLES = "updates", "examples"
STATISTICS = ("mean", "median")
LOWEST, HIGHEST = BEST = ("lowest", "highest")

ASCENDING, EQUIVALENT, AT_MOST = "ascending", "equivalent", "at_most"
RELATIONS = (ASCENDING, LOWEST, HIGHEST, EQUIVALENT, AT_MOST)
"""Relations that a claim can state.

ascending: the mean of each cell is lower than the mean of the next cell. lowest, highest: the mean of the first cell is
lower (higher) than the mean of each other cell. equivalent: the means of two cells differ by less than ``margin``.
at_most: no value of any seed exceeds ``limit``. The relation ``at_most`` is decided without a test.
"""

ADAPT = "adapt"
"""The prefix of the metrics of adapted networks on the target domain, such as adapt/adabn/accuracy."""

METRIC = re.compile(rf"(train|val|test)/[a-z][a-z0-9_]*|{ADAPT}/[a-z][a-z0-9_]*/[A-Za-z0-9_./-]+")
LIBRARY = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True)
class Paper:
    """A source of published values. cite: authors, title and identifier. where: the section that states the values."""

    cite: str
    where: str = ""


@dataclass(frozen=True)
class Run:
    """A configuration that is executed once for a count or a simulation, otherwise once with each seed of the table.

    overrides: applied after the table's ``base``. against: an earlier run in the file; the final weights of both runs
    are compared, seed by seed. changed: the reason why the overrides were changed after the run had results. These
    results stay in the table as results of an "earlier design". memory_gib: memory that the run needs without its data,
    in GiB, stated for a run that does not fit most machines.
    """

    overrides: tuple[str, ...] = ()
    against: str = ""
    changed: str = ""
    memory_gib: float | None = None


@dataclass(frozen=True)
class Column:
    """A column: the value that its cells read from runs, and the form in which the value is shown.

    read: one of :data:`SIZES` in a table of counts; one of :data:`TIMES` in a table of simulations; a library of
    ``benchmarks``, such as torch-eager, in a benchmark; else a metric, such as test/accuracy, or one of
    :data:`READINGS`. missing: instead of ``read``, the reason why the column has published values only. layers: kinds
    of layers that are counted; () for all. at: the evaluation that gives a metric: {updates: N} for the one after N
    updates, {examples: N} for the last one with at most N training examples, {} for the last one of the run.
    relative_to: a run; each value is divided by the value of that run with the same seed. gain: with ``relative_to``,
    the quotient is inverted and reduced by 1, so that a step in half the time is a gain of 100 %. statistic: over
    seeds, one of :data:`STATISTICS`. best: one of :data:`BEST`, the value of the column (in a benchmark, of the row)
    that LaTeX prints in bold; "" for none. unit: "%" for fractions shown in percent, "ms" for seconds shown in ms.
    """

    title: str
    read: str = ""
    missing: str = ""
    layers: tuple[str, ...] = ()
    at: dict[str, int] = field(default_factory=dict)
    relative_to: str = ""
    gain: bool = False
    statistic: Annotated[str, OneOf(STATISTICS)] = "mean"
    best: Annotated[str, OneOf(("", *BEST))] = ""
    unit: Annotated[str, OneOf(("", "%", "ms"))] = ""

    @property
    def size(self) -> str:
        """The key of the column's value in :class:`~runner.tables.results.Result`: ``read`` and the kinds of layers."""
        return " of ".join(filter(None, (self.read, " and ".join(sorted(self.layers)))))


@dataclass(frozen=True)
class Cell:
    """A value of a run, and the values that papers state for it.

    factor: multiplies the quotient of a column with ``relative_to``, such as N / (N + b) for the gain per process.
    fitted: in a simulation, the property of the hardware that was chosen so that the value equals the published one.
    The verdict on such a value is "fitted", because the value is not a prediction.
    """

    published: tuple[Published, ...] = ()
    factor: float = 1.0
    fitted: str = ""


@dataclass(frozen=True)
class Row:
    """A row. run: the run that its cells read; "" if there is none yet. missing: the reason why there is no run."""

    title: str
    run: str = ""
    missing: str = ""
    cells: dict[str, Cell] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A statement that the table decides. text: the statement. cells: ROW/COLUMN. relation: one of :data:`RELATIONS`.

    margin, limit: numbers in the unit of the metric, for the relations ``equivalent`` and ``at_most``. test: the test
    of the other relations. In a benchmark, whose rounds are pairs, "welch" stands for the paired t-test, and
    "permutation" for the permutation of signs.
    """

    text: str
    cells: tuple[str, ...]
    relation: Annotated[str, OneOf(RELATIONS)]
    margin: float | None = None
    limit: float | None = None
    test: Annotated[str, OneOf(("welch", "permutation"))] = "welch"


@dataclass(frozen=True)
class Table:
    """The content of a table's file.

    base: overrides of all runs. seeds: the seeds of each run, in a benchmark one per round; () for counts and
    simulations. reduced: for the kind ``small``, the differences that make a run smaller than in the paper. papers,
    runs, columns, rows, claims: by name; other entries refer to these names. note: a sentence below the table.
    """

    title: str
    kind: Annotated[str, OneOf(KINDS)]
    columns: dict[str, Column]
    rows: dict[str, Row]
    papers: dict[str, Paper] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    base: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    claims: dict[str, Claim] = field(default_factory=dict)
    reduced: str = ""
    note: str = ""

    @property
    def repetition(self) -> str:
        """The unit that gives one value of a cell: "round" in a benchmark, otherwise "seed"."""
        return ROUND if self.kind == BENCHMARK else SEED

    def cells(self) -> Iterator[tuple[str, str, Cell]]:
        """Yield (row, column, cell) in the order of the table."""
        for name, row in self.rows.items():
            for column in (each for each in self.columns if each in row.cells):
                yield name, column, row.cells[column]

    def overrides(self, run: str) -> list[str]:
        """Return all overrides of a run."""
        return [*self.base, *self.runs[run].overrides]

    def criteria(self) -> str:
        """Return the SHA-256 of all entries that affect verdicts: kind, seeds, columns, cells and claims."""
        claims = {name: replace(claim, text="") for name, claim in self.claims.items()}
        cells = {f"{row}/{column}": asdict(cell) for row, column, cell in self.cells()}
        # Empty keys are left out, so that a new key of :class:`Cell` does not change the criteria of older results.
        cells = {name: {key: value for key, value in cell.items() if value != ""} for name, cell in cells.items()}
        columns = {name: asdict(replace(column, title="", best="")) for name, column in self.columns.items()}
        plain = [self.kind, self.seeds, columns, cells, {name: asdict(claim) for name, claim in claims.items()}]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


_ONLY_RATIOS = {SMALL: "a value of a reduced configuration supports", BENCHMARK: "times on two machines support"}
"""Kind of tables whose values are not compared with published ones -> the reason."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def faults_of(table: Table) -> Iterator[str]:
    """Yield a message for each wrong reference or value of a table, with its place in the file."""
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
            yield f"rows.{name}: expected the key `run`, or the key `missing` with a reason"
        for column_name in row.cells.keys() - table.columns.keys():
            yield f"rows.{name}.cells.{column_name}: expected one of the columns {', '.join(table.columns)}"
    for row_name, column_name, cell in table.cells():
        run = table.runs.get(table.rows[row_name].run)
        if table.columns[column_name].read == WEIGHT_DIFFERENCE and run is not None and not run.against:
            yield f"rows.{row_name}.cells.{column_name}: reads {WEIGHT_DIFFERENCE}, but the run has no key `against`"
        if cell.factor != 1 and not table.columns[column_name].relative_to:
            yield f"rows.{row_name}.cells.{column_name}.factor: {cell.factor}, expected only with `relative_to`"
        if cell.fitted and table.kind != SIMULATED:
            where = f"rows.{row_name}.cells.{column_name}.fitted"
            yield f"{where}: {cell.fitted!r}, expected none for the kind {table.kind}"
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
        yield f"reduced: {table.reduced!r}, expected a list of the smaller sizes, for the kind {SMALL} only"
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
        yield f"read: {column.read!r}, expected the value that cells read, or the key `missing` with a reason"
    elif column.missing:
        return
    readable = {
        BENCHMARK: (LIBRARY.fullmatch(column.read), "a library such as torch-eager in a benchmark"),
        COUNT: (column.read in SIZES, f"one of {', '.join(SIZES)} in a table of counts"),
        SIMULATED: (column.read in TIMES, f"one of {', '.join(TIMES)} in a table of simulations"),
    }
    training = is_metric or column.read in READINGS, f"a metric such as test/accuracy, or one of {', '.join(READINGS)}"
    fits, expected = readable.get(table.kind, training)
    if not fits:
        yield f"read: {column.read!r}, expected {expected}"
    if column.at and not (is_metric and len(column.at) == 1 and column.at.keys() <= {UPDATES, EXAMPLES}):
        yield f"at: {column.at}, expected {{{UPDATES}: N}} or {{{EXAMPLES}: N}}, for a metric"
    if column.gain and not column.relative_to:
        yield "gain: True, expected only with `relative_to`"
    if column.layers and table.kind != COUNT:
        yield f"layers: {list(column.layers)}, expected none for the kind {table.kind}"
    if column.relative_to and column.read == WEIGHT_DIFFERENCE:
        yield f"relative_to: {column.relative_to!r}, expected none for {WEIGHT_DIFFERENCE}"
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
            hint = f"; did you mean {close[0]!r}?" if close else ""
            yield f"cells: {cell!r}, expected ROW/COLUMN of a cell of the table{hint}"
    least, exact = (1, False) if claim.relation == AT_MOST else (2, claim.relation == EQUIVALENT)
    if len(claim.cells) < least or (exact and len(claim.cells) > least):
        yield f"cells: {list(claim.cells)}, expected {least}{'' if exact else ' or more'} for {claim.relation}"
    for name, relation in (("margin", EQUIVALENT), ("limit", AT_MOST)):
        value, needed = getattr(claim, name), claim.relation == relation
        fits = value is not None and math.isfinite(value) if needed else value is None
        if not fits:
            yield f"{name}: {value}, expected {'a finite number' if needed else 'none'} for {claim.relation}"
    if claim.margin is not None and claim.margin <= 0:
        yield f"margin: {claim.margin}, expected a number above 0"
    if claim.test == "permutation" and (table.kind in COMPUTED or claim.relation in (EQUIVALENT, AT_MOST)):
        of = f"the kind {table.kind}" if table.kind in COMPUTED else claim.relation
        yield f"test: {claim.test!r}, expected none for {of}"
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
