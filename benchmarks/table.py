"""Results as Markdown: what a reader compares stands side by side, and how it was measured stands above it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.alternate import SETTLING
from benchmarks.limit import Rates
from benchmarks.overlap import WAYS, OverlapResult
from benchmarks.protocol import PHASES
from benchmarks.results import LOSSES, TOLERANCES, CaseResult, SubjectResult
from benchmarks.scaling import ScalingResult
from benchmarks.strategies import StrategyTable

_NOTHING = "-"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column is text, the others are numbers."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def preamble(machine: Mapping[str, str], rates: Mapping[str, Rates]) -> str:
    """Where and how. machine: what is to be known of it, by name. rates: by precision."""
    facts = [f"- {name}: {value}" for name, value in machine.items()]
    limits = [f"- best rates, {precision}: {found.sentence()}" for precision, found in rates.items()]
    tolerances = "; ".join(
        f"{precision}: {tolerance.of_loss:g} of the loss and {tolerance.of_change:g} of its change"
        for precision, tolerance in TOLERANCES.items()
    )
    manner = [
        "Every subject is a process of its own, with the same batch, the same initial values and as many threads.",
        "All are warmed, then take turns; the others wait meanwhile. "
        f"The first {SETTLING} of a turn's runs does not count.",
        "A run ends when its loss is in hand. Times are medians, with quartiles, in ms.",
    ]
    comparison = [
        "Phases: the loss alone; the loss and all gradients; the training step, with the update of momentum.",
        "Limit: multiply-adds over the best rate, and for the step optimizer bytes over bandwidth.",
        "Memory: largest resident set after the steps, compilation included; in brackets, before the network.",
        f"Losses: of the first {LOSSES} steps, compared with ours ({tolerances}).",
    ]
    return "\n".join(["# Measurements", "", *facts, *limits, "", *manner, *(comparison if rates else [])])


def overview(results: Sequence[CaseResult]) -> str:
    """The training step of every case: ours against the best and the leanest peer and against the limit."""
    header = ("case", "precision", "ours, ms", "best peer", "its ms", "ours / best", "limit, ms", "ours / limit")
    memory = ("ours, MiB", "leanest peer", "its MiB", "bfloat16 / float32")
    return markdown([*header, *memory], [_overview_row(result, results) for result in results])


def _overview_row(result: CaseResult, results: Sequence[CaseResult]) -> Sequence[str]:
    ours, best, limit = result.ours.median("step"), result.best_peer("step"), result.limit_s.get("step")
    lean = result.leanest_peer()
    wide = next((r.ours.median("step") for r in results if r.case == result.case and r.precision == "float32"), None)
    return (
        result.case,
        result.precision,
        _ms(ours),
        best.name if best else _NOTHING,
        _ms(best.median("step") if best else None),
        _ratio(ours, best.median("step") if best else None),
        _ms(limit),
        _ratio(ours, limit),
        _NOTHING if result.ours.failure else f"{result.ours.memory_mib[1]:,.0f}",
        lean.name if lean else _NOTHING,
        f"{lean.memory_mib[1]:,.0f}" if lean else _NOTHING,
        _ratio(ours, wide) if result.precision == "bfloat16" else _NOTHING,
    )


def case_section(result: CaseResult) -> str:
    """Every subject and every phase of one case."""
    work = ", ".join(f"{phase} {count / 1e6:,.1f}" for phase, count in result.multiply_adds.items())
    header = ["subject"]
    for phase in PHASES:
        header += [f"{phase}, ms", "of best peer", "of limit"]
    rows = [_subject_row(result, subject) for subject in result.subjects]
    limits = ["physical limit"]
    for phase in PHASES:
        limits += [_ms(result.limit_s.get(phase)), "", ""]
    return "\n".join(
        [
            f"## {result.title}, {result.precision}",
            "",
            f"{result.parameters:,} parameters; million multiply-adds: {work}.",
            "",
            markdown([*header, "memory, MiB", "losses"], [*rows, [*limits, "", ""]]),
        ]
    )


def _subject_row(result: CaseResult, subject: SubjectResult) -> Sequence[str]:
    if subject.failure:
        return (subject.name, subject.failure.replace("|", "/"), *[""] * (3 * len(PHASES) + 1))
    cells = [subject.name]
    for phase in PHASES:
        cells += _phase_cells(result, subject, phase)
    before, after = subject.memory_mib
    losses = ", ".join(f"{loss:.4f}" for loss in subject.losses)
    if subject is not result.ours:
        same = result.same_computation(subject)
        losses = "as ours" if same else f"different computation: {losses}"
    return [*cells, f"{after:,.0f} ({before:,.0f})", losses]


def _phase_cells(result: CaseResult, subject: SubjectResult, phase: str) -> list[str]:
    median, best = subject.median(phase), result.best_peer(phase)
    if median is None:
        return [_NOTHING] * 3
    low, high = subject.quartiles(phase)
    counts = subject is result.ours or result.same_computation(subject)
    of_best = _ratio(median, best.median(phase) if best else None) if counts else _NOTHING
    of_limit = _ratio(median, result.limit_s.get(phase)) if counts else _NOTHING
    return [f"{_ms(median)} ({_ms(low)}-{_ms(high)})", of_best, of_limit]


def strategies_section(tables: Sequence[StrategyTable]) -> str:
    """The training step of one network under several strategies."""
    header = ("case", "strategy", "step, ms", "quartiles, ms", "examples/s")
    rows = [_strategy_row(table, strategy) for table in tables for strategy in table.strategies]
    return f"## Strategies, whole batch kept, float32\n\n{markdown(header, rows)}"


def _strategy_row(table: StrategyTable, strategy: SubjectResult) -> Sequence[str]:
    if strategy.failure:
        return (table.title, strategy.name, strategy.failure.replace("|", "/"), "", "")
    low, high = strategy.quartiles("step")
    rate = f"{table.rate(strategy):,.0f}"
    return (table.title, strategy.name, _ms(strategy.median("step")), f"{_ms(low)}-{_ms(high)}", rate)


def scaling_section(results: Sequence[ScalingResult]) -> str:
    """What exchange costs sync_data."""
    header = ("case", "batch per worker", "sync_data, examples/s", "unconnected singles, sum", "sync_data / sum")
    rows = [_scaling_row(result) for result in results]
    table = markdown([*header, "one single alone", "sync_data / alone", "sum / alone"], rows)
    return f"## Scaling: sync_data against unconnected runs side by side, one thread each, float32\n\n{table}"


def _scaling_row(result: ScalingResult) -> Sequence[str]:
    connected, unconnected, alone = result.connected_rate, result.unconnected_rate, result.alone_rate
    return (
        result.case,
        str(result.batch),
        f"{connected:,.1f}",
        f"{unconnected:,.1f}",
        _ratio(connected, unconnected),
        f"{alone:,.1f}",
        _ratio(connected, alone),
        _ratio(unconnected, alone),
    )


def overlap_section(results: Sequence[OverlapResult]) -> str:
    """What part of the exchange of gradients hides behind compute."""
    first = results[0]
    header = ("combine", *(f"{way}, ms" for way in WAYS), "hidden", "quartiles of rounds")
    lines = [
        "## Overlap of exchange and compute, float32",
        "",
        f"sync_data on {first.title}, {first.workers} workers of one thread each, which share the cores.",
        f"Network between workers, emulated: {first.network}; every ordered pair of workers has a link of its own.",
        "No network: the same plans without the waits. Blocking: no gradient is sent before all exist on the worker.",
        "Hidden: (blocking - overlapped) / (blocking - no network), of medians over all steps and by rounds.",
        f"Losses of the first {LOSSES} steps are equal to the bit in all three.",
        "",
        markdown(header, [_overlap_row(result) for result in results]),
    ]
    return "\n".join(lines)


def _overlap_row(result: OverlapResult) -> Sequence[str]:
    cells = [result.combine]
    for name in WAYS:
        way = result.way(name)
        low, high = way.quartiles("step")
        cells.append(f"{_ms(way.median('step'))} ({_ms(low)}-{_ms(high)})")
    low, high = result.hidden_quartiles
    return [*cells, f"{result.hidden:.2f}", f"{low:.2f}-{high:.2f}"]


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return _NOTHING
    milliseconds = seconds * 1e3
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def _ratio(value: float | None, of: float | None) -> str:
    return _NOTHING if value is None or of is None else f"{value / of:.2f}"
