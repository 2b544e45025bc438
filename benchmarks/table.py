"""Results as Markdown. Compared values are in one table, below a description of the measurement."""

from collections.abc import Mapping, Sequence

from benchmarks.alternate import SETTLING
from benchmarks.cases import PRECISIONS
from benchmarks.cells import NOTHING, markdown, milliseconds, ratio
from benchmarks.limit import Rates
from benchmarks.protocol import PHASES
from benchmarks.results import LOSSES, TOLERANCES, CaseResult, SubjectResult
from benchmarks.scaling import ScalingResult
from benchmarks.strategies import StrategyTable


def heading(machine: Mapping[str, str], rates: Mapping[str, Rates]) -> str:
    """Return a description of the machine. machine: facts by name. rates: rates by precision."""
    facts = [f"- {name}: {value}" for name, value in machine.items()]
    limits = [f"- best rates, {precision}: {found.sentence()}" for precision, found in rates.items()]
    return "\n".join(["# Measurements", "", *facts, *limits])


def method() -> str:
    """Return a description of how networks are measured."""
    tolerances = "; ".join(
        f"{precision}: {tolerance.of_loss:g} of the loss and {tolerance.of_change:g} of its change"
        for precision, tolerance in TOLERANCES.items()
        if precision in PRECISIONS
    )
    return "\n".join(
        [
            "Each implementation, runner or a variant of another framework (peer), runs in a separate process.",
            "All have the same batch, initial values and number of threads.",
            "After a warm-up, the implementations take turns, one at a time. "
            f"Discarded runs at the start of each turn: {SETTLING}.",
            "A run ends when its loss is available. Times are medians, with quartiles, in ms.",
            "Phases: forward (loss only), gradients (loss and all gradients), step (gradients and momentum update).",
            "Limit: multiply-adds / best rate; for the step, plus bytes that the optimizer moves / memory bandwidth.",
            "Memory: peak resident set size after the steps, including compilation; in parentheses, before loading.",
            f'Losses: losses of the first {LOSSES} steps; "match" means equal to runner\'s within tolerances '
            f"({tolerances}).",
        ]
    )


def overview(results: Sequence[CaseResult]) -> str:
    """Return a table of every case's training step: runner against the best peers and the limit."""
    header = ("case", "precision", "runner, ms", "best peer", "best peer, ms", "runner / best peer", "limit, ms")
    memory = ("runner / limit", "runner, MiB", "lowest-memory peer", "lowest peer, MiB", "bfloat16 / float32")
    return markdown([*header, *memory], [_overview_row(result, results) for result in results])


def _overview_row(result: CaseResult, results: Sequence[CaseResult]) -> Sequence[str]:
    ours, best, limit = result.ours.median("step"), result.best_peer("step"), result.limit_s.get("step")
    lean = result.leanest_peer()
    wide = next((r.ours.median("step") for r in results if r.case == result.case and r.precision == "float32"), None)
    return (
        result.case,
        result.precision,
        milliseconds(ours),
        best.name if best else NOTHING,
        milliseconds(best.median("step") if best else None),
        ratio(ours, best.median("step") if best else None),
        milliseconds(limit),
        ratio(ours, limit),
        NOTHING if result.ours.failure else f"{result.ours.memory_mib[1]:,.0f}",
        lean.name if lean else NOTHING,
        f"{lean.memory_mib[1]:,.0f}" if lean else NOTHING,
        ratio(ours, wide) if result.precision == "bfloat16" else NOTHING,
    )


def case_section(result: CaseResult) -> str:
    """Return a table of one case, with every implementation and phase."""
    work = ", ".join(f"{phase} {count / 1e6:,.1f}" for phase, count in result.multiply_adds.items())
    header = ["implementation"]
    for phase in PHASES:
        header += [f"{phase}, ms", "/ best peer", "/ limit"]
    rows = [_subject_row(result, subject) for subject in result.subjects]
    limits = ["physical limit"]
    for phase in PHASES:
        limits += [milliseconds(result.limit_s.get(phase)), "", ""]
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
        losses = "match" if same else f"different computation: {losses}"
    return [*cells, f"{after:,.0f} ({before:,.0f})", losses]


def _phase_cells(result: CaseResult, subject: SubjectResult, phase: str) -> list[str]:
    median, best = subject.median(phase), result.best_peer(phase)
    if median is None:
        return [NOTHING] * 3
    low, high = subject.quartiles(phase)
    counts = subject is result.ours or result.same_computation(subject)
    of_best = ratio(median, best.median(phase) if best else None) if counts else NOTHING
    of_limit = ratio(median, result.limit_s.get(phase)) if counts else NOTHING
    return [f"{milliseconds(median)} ({milliseconds(low)}-{milliseconds(high)})", of_best, of_limit]


def strategies_section(tables: Sequence[StrategyTable]) -> str:
    """Return a table of one network's training step under several strategies."""
    header = ("case", "strategy", "step, ms", "quartiles, ms", "examples/s")
    rows = [_strategy_row(table, strategy) for table in tables for strategy in table.strategies]
    return f"## Strategies with equal total batch, float32\n\n{markdown(header, rows)}"


def _strategy_row(table: StrategyTable, strategy: SubjectResult) -> Sequence[str]:
    if strategy.failure:
        return (table.title, strategy.name, strategy.failure.replace("|", "/"), "", "")
    low, high = strategy.quartiles("step")
    rate = f"{table.rate(strategy):,.0f}"
    return (
        table.title,
        strategy.name,
        milliseconds(strategy.median("step")),
        f"{milliseconds(low)}-{milliseconds(high)}",
        rate,
    )


def scaling_section(results: Sequence[ScalingResult]) -> str:
    """Return a table of the cost of exchange in sync_data."""
    header = ("case", "batch per worker", "sync_data, examples/s", "unconnected runs, examples/s")
    rows = [_scaling_row(result) for result in results]
    table = markdown(
        [*header, "sync_data / unconnected", "one run, examples/s", "sync_data / one run", "unconnected / one run"],
        rows,
    )
    return f"## Scaling: sync_data against simultaneous unconnected runs, one thread each, float32\n\n{table}"


def _scaling_row(result: ScalingResult) -> Sequence[str]:
    connected, unconnected, alone = result.connected_rate, result.unconnected_rate, result.alone_rate
    return (
        result.case,
        str(result.batch),
        f"{connected:,.1f}",
        f"{unconnected:,.1f}",
        ratio(connected, unconnected),
        f"{alone:,.1f}",
        ratio(connected, alone),
        ratio(unconnected, alone),
    )
