"""Verdicts on the cells and the claims of a table, from our values over seeds or rounds and from published values."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from runner.tables.claims import ClaimVerdict, Comparison, decide, equivalent, every, lower
from runner.tables.results import Result, RunResults
from runner.tables.statistics import ROUND, Sample, not_finite_text, seeds_text, summary
from runner.tables.table import (
    ASCENDING,
    AT_MOST,
    BENCHMARK,
    COMPUTED,
    EQUIVALENT,
    EXAMPLES,
    HIGHEST,
    LOWEST,
    METRIC,
    SMALL,
    SPEEDS,
    UPDATES,
    WEIGHT_DIFFERENCE,
    Claim,
    Column,
    Table,
)
from runner.tables.two_samples import differences
from runner.tables.verdict import number_of, verdict

MISSING, STALE, INCOMPLETE, FITTED = "missing", "stale", "incomplete", "fitted"
"""Verdicts, in this order: no value; only values of an earlier design; no value for some seeds, or speeds of several
kinds of machines; a value to which the description of the hardware was fitted."""

_Values = Mapping[int | None, float]

T = TypeVar("T")

HOLDS, FAILS, OPEN = "holds", "fails", "undecided"


@dataclass(frozen=True)
class Line:
    """One line of a table: a cell, with one of its published values if it has any.

    row, column: titles. cell: ROW/COLUMN. sample: our values; None if there are none. ours: mean or median of the
    sample; None if it does not exist. difference: (ours - published) / published or, if ``unit`` is "%", ours -
    published. verdict: "" if the published value decides nothing. reason: of a verdict such as MISSING.
    """

    row: str
    column: str
    cell: str
    kind: str
    unit: str
    statistic: str = "mean"
    sample: Sample | None = None
    ours: float | None = None
    published: str = ""
    source: str = ""
    confidence: str = ""
    difference: float | None = None
    verdict: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Decided:
    """A claim and its verdict. evidence: the test, its p-value after the correction, and the difference, as text."""

    text: str
    verdict: str
    evidence: str = ""


@dataclass(frozen=True)
class TableState:
    """A table with its results. earlier: sentences about results of earlier designs of runs."""

    table: Table
    results: Mapping[str, RunResults]
    lines: Sequence[Line]
    claims: Sequence[Decided]
    earlier: Sequence[str]


def state_of(table: Table, results: Mapping[str, RunResults]) -> TableState:
    """Return the table with all cells and claims decided."""
    lines, claims = tuple(_lines(table, results)), tuple(_decided(table, results))
    return TableState(table, results, lines, claims, tuple(_earlier(table, results)))


def values_of(table: Table, results: Mapping[str, RunResults], row: str, column: str) -> dict[int | None, float]:
    """Return seed -> value of a cell, for the seeds that have a result for the present configuration."""
    run, read = table.rows[row].run, table.columns[column]
    if run not in results:
        return {}
    own = _readings(results[run], read)
    if read.read == WEIGHT_DIFFERENCE:
        reference = results[table.runs[run].against].current
        weights = {seed: result.origin.weights_sha256 for seed, result in reference.items()}
        return {seed: value for seed, value in own.items() if results[run].current[seed].against == weights.get(seed)}
    if not read.relative_to:
        return own
    others, factor = _readings(results[read.relative_to], read), table.rows[row].cells[column].factor
    pairs = {seed: (value, others[seed]) for seed, value in own.items() if seed in others}
    if read.gain:
        return {seed: factor * _ratio(other, value) - 1 for seed, (value, other) in pairs.items()}
    return {seed: factor * _ratio(value, other) for seed, (value, other) in pairs.items()}


def _ratio(value: float, other: float) -> float:
    return value / other if other else float("nan")


def _readings(found: RunResults, column: Column) -> dict[int | None, float]:
    values = {seed: reading(result, column) for seed, result in found.current.items()}
    return {seed: value for seed, value in values.items() if value is not None}


def reading(result: Result, column: Column) -> float | None:
    """Return the value of a column in a result; None if the result lacks it.

    If the run failed, a metric at its end, or at a place that the run did not reach, is NaN.
    """
    if result.kind in COMPUTED or not METRIC.fullmatch(column.read):
        return result.values.get(column.size)
    found = result.evaluations
    if UPDATES in column.at:
        found = tuple(each for each in found if each.updates == column.at[UPDATES])
    elif EXAMPLES in column.at:
        reached = any(each.examples >= column.at[EXAMPLES] for each in found)
        found = tuple(each for each in found if reached and each.examples <= column.at[EXAMPLES])
    if result.failure and not (found and column.at):
        return float("nan")
    return found[-1].values.get(column.read) if found else None


def _lines(table: Table, results: Mapping[str, RunResults]) -> Iterator[Line]:
    for row, column, cell in table.cells():
        read = table.columns[column]
        values = list(values_of(table, results, row, column).values())
        sample = summary(values, table.repetition) if values else None
        reason, state = _absence(table, results, row, column, len(values))
        ours = None if sample is None else sample.median if read.statistic == "median" else sample.mean
        titles = table.rows[row].title, read.title
        line = Line(*titles, f"{row}/{column}", table.kind, read.unit, read.statistic, sample, ours)
        line = replace(line, verdict=state, reason=reason)
        if not cell.published:
            yield line
        for each in cell.published:
            source = ", ".join(filter(None, (table.papers[each.paper].cite, each.where)))
            line = replace(line, published=each.printed, source=source, confidence=each.confidence)
            if sample is None or state:
                yield line
                continue
            printed = float(number_of(each.printed))
            away = None if ours is None else ours - printed
            apart = away if away is None or read.unit == "%" else away / printed if printed else None
            if table.kind in (SMALL, BENCHMARK) and not each.tolerance:
                apart = None  # a difference between values of other networks or machines has no meaning
            if cell.fitted:
                reason = f"the {cell.fitted} was fitted to this value"
                yield replace(line, difference=apart, verdict=FITTED, reason=reason)
                continue
            found = verdict(sample, each, "exact" if table.kind in COMPUTED else read.statistic)
            yield replace(line, difference=apart, verdict=found)


def _absence(table: Table, results: Mapping[str, RunResults], row: str, column: str, values: int) -> tuple[str, str]:
    """Return the reason why a cell lacks values, and its verdict, such as MISSING; ("", "") if it lacks none."""
    run, wanted, read = table.rows[row].run, len(table.seeds) or 1, table.columns[column]
    if reason := table.rows[row].missing or read.missing:
        return reason, MISSING
    if values == wanted:
        mixed = _mixed(table, results, (f"{row}/{column}",))
        return mixed, INCOMPLETE if mixed else ""
    if values:
        return f"{values} of {seeds_text(wanted, table.repetition)} have a value", INCOMPLETE
    if results[run].current and read.relative_to and not results[read.relative_to].current:
        return f"the run {read.relative_to}, to which it is relative, has no value", MISSING
    if results[run].current:
        return f"the results have no value of {read.read} at this place", MISSING
    if keys := results[run].changed_keys:
        return f"the configuration changed in {keys} since the value was computed", STALE
    return "it was not run", MISSING


def _mixed(table: Table, results: Mapping[str, RunResults], cells: Sequence[str]) -> str:
    """Return a text if speeds in cells are from several kinds of machines, or "". Two runs may differ in threads."""
    kinds, cpus = 1, set[str | None]()
    for row, column in (cell.split("/", 1) for cell in cells):
        read = table.columns[column]
        if table.kind == BENCHMARK or read.read in SPEEDS:
            for run in {table.rows[row].run, read.relative_to} & results.keys():
                machines = [result.origin.machine for result in results[run].current.values()]
                kinds = max(kinds, len({str(sorted(each.items())) for each in machines}))
                cpus |= {each.get("cpu") for each in machines}
    kinds = max(kinds, len(cpus))
    return f"the speeds are from {kinds} kinds of machines" if kinds > 1 else ""


def _earlier(table: Table, results: Mapping[str, RunResults]) -> Iterator[str]:
    """Yield a sentence for each earlier design of a run and each column that reads the run."""
    for name, found in results.items():
        designs: dict[tuple[str, str], list[Result]] = {}
        for result, keys in found.earlier:
            design = json.dumps({**result.configuration, "seed": None}, sort_keys=True)
            designs.setdefault((", ".join(keys), design), []).append(result)
        reason = table.runs[name].changed or "the file states no reason"
        shown = [column for row, column, _ in table.cells() if table.rows[row].run == name]
        for (keys_text, _), old in designs.items():
            for column in (table.columns[each] for each in shown if not table.columns[each].relative_to):
                values = [value for each in old if (value := reading(each, column)) is not None]
                if values:
                    center = summary(values).mean
                    text = "not finite" if center is None else f"{center:.6g}"
                    mean = f"mean {text} over {seeds_text(len(values), table.repetition)}; changed because: {reason}"
                    yield f"Earlier configuration of {name} (other {keys_text}), {column.title}: {mean}"


def _decided(table: Table, results: Mapping[str, RunResults]) -> Iterator[Decided]:
    """Yield the decided claims in order. Holm's correction counts all claims with a test, even without values."""
    comparisons = {name: _compared(claim, table, results) for name, claim in table.claims.items()}
    tested = {name: found for name, found in comparisons.items() if isinstance(found, Comparison)}
    verdicts = dict(zip(tested, decide(list(tested.values())), strict=True))
    for name, claim in table.claims.items():
        found = comparisons[name]
        yield found if isinstance(found, Decided) else _with_evidence(claim, verdicts[name])


def _compared(claim: Claim, table: Table, results: Mapping[str, RunResults]) -> Comparison | Decided:
    wanted = len(table.seeds) or 1
    cells = [values_of(table, results, *cell.split("/", 1)) for cell in claim.cells]
    lacking = [cell for cell, each in zip(claim.cells, cells, strict=True) if len(each) < wanted]
    of = "no value" if table.kind in COMPUTED else f"{table.repetition}s without a value"
    lack = f"{of} in {', '.join(lacking)}" if lacking else _mixed(table, results, claim.cells)
    if claim.relation == AT_MOST:
        assert claim.limit is not None
        values = [value for each in cells for value in each.values()]
        exceeding = any(not value <= claim.limit for value in values)
        if lack and not exceeding:
            return Decided(claim.text, OPEN, lack)
        sample = summary(values, table.repetition)
        largest = not_finite_text(sample) if sample.not_finite else f"largest value {sample.largest:.3g}"
        return Decided(claim.text, FAILS if exceeding else HOLDS, f"{largest}, limit {claim.limit:g}")
    if table.kind in COMPUTED:
        return Decided(claim.text, OPEN, lack) if lack else _without_test(claim, [each[None] for each in cells])
    if lack:
        return Comparison(claim.test, min(map(len, cells)), reason=lack, repetition=table.repetition)
    parts = [_of_two(claim, table, a, b) for a, b in _pairs(claim.relation, cells)]
    return parts[0] if len(parts) == 1 else every(parts)


def _pairs(relation: str, cells: Sequence[T]) -> list[tuple[T, T]]:
    """Return the pairs that a relation compares; in each, the first is claimed to be lower or equivalent."""
    first, *others = cells
    return {
        ASCENDING: list(pairwise(cells)),
        LOWEST: [(first, other) for other in others],
        HIGHEST: [(other, first) for other in others],
        EQUIVALENT: [(first, others[0])],
    }[relation]


def _without_test(claim: Claim, values: Sequence[float]) -> Decided:
    """Decide a claim about values that do not depend on a seed."""
    away = [a - b for a, b in _pairs(claim.relation, values)]
    held = all(abs(each) < (claim.margin or 0.0) for each in away) if claim.margin else all(each < 0 for each in away)
    shown = ", ".join(f"{each:.3g}" for each in values)
    return Decided(claim.text, HOLDS if held else FAILS, f"values {shown}")


def _of_two(claim: Claim, table: Table, a: _Values, b: _Values) -> Comparison:
    """Compare two cells: by the differences in each round in a benchmark, otherwise as independent samples."""
    of_rounds = differences(a, b) if table.repetition == ROUND else None
    first, second = (summary(list(cell.values()), table.repetition) for cell in (a, b))
    if claim.relation == EQUIVALENT:
        assert claim.margin is not None
        return equivalent(first, second, claim.margin, of_rounds)
    return lower(first, second, claim.test, of_rounds)


def _with_evidence(claim: Claim, found: ClaimVerdict) -> Decided:
    compared = found.comparison
    facts = [compared.reason or f"{compared.test}, p = {found.p_adjusted:.2g} after Holm's correction"]
    sign = -1 if claim.relation == HIGHEST else 1  # the first cell minus the other cell
    if compared.difference is not None:
        facts.append(f"difference {sign * compared.difference:.3g}")
    if compared.interval is not None:
        low, high = sorted(sign * each for each in (compared.interval.low, compared.interval.high))
        facts.append(f"{compared.interval.confidence:.0%} interval {low:.3g} to {high:.3g}")
    if compared.effect is not None:
        facts.append(f"Hedges' g {sign * compared.effect:.2g}")
    if compared.difference is not None and found.seeds_needed is not None:
        facts.append(f"{seeds_text(found.seeds_needed, compared.repetition)} would decide it with a power of 80 %")
    return Decided(claim.text, found.text, ", ".join(facts))
