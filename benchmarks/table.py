"""Results as Markdown. Compared values are in one table, below a description of the measurement."""

from collections.abc import Sequence

from benchmarks.alternate import SETTLING
from benchmarks.cases import PRECISIONS
from benchmarks.cells import NOTHING, markdown, milliseconds, ratio, spread
from benchmarks.protocol import PHASES
from benchmarks.results import CaseResult, SubjectResult, compared_losses, method_of_losses


def method() -> str:
    """Return a description of how networks are measured."""
    return "\n".join(
        [
            "Each implementation, runner or a variant of another framework (peer), runs in a separate process.",
            "All have the same batch, initial values and number of threads.",
            "After a warm-up, the implementations take turns, one at a time. "
            f"Discarded runs at the start of each turn: {SETTLING}.",
            "A run ends when its loss is available. Times are medians, with quartiles, in ms.",
            "Phases: forward (loss only), gradients (loss and all gradients), step (gradients and momentum update).",
            "Limit: multiply-adds of direct sums / best rate; in a step, plus optimizer bytes / memory bandwidth.",
            "Memory: peak resident set size after the steps, including compilation; in parentheses, before loading.",
            method_of_losses(PRECISIONS),
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
    return [*cells, f"{after:,.0f} ({before:,.0f})", compared_losses(result, subject)]


def _phase_cells(result: CaseResult, subject: SubjectResult, phase: str) -> list[str]:
    median, best = subject.median(phase), result.best_peer(phase)
    if median is None:
        return [NOTHING] * 3
    counts = subject is result.ours or result.same_computation(subject)
    of_best = ratio(median, best.median(phase) if best else None) if counts else NOTHING
    of_limit = ratio(median, result.limit_s.get(phase)) if counts else NOTHING
    return [spread(subject.seconds[phase]), of_best, of_limit]
