"""Benchmark results with chosen values, and a reader of table rows, for tests."""

from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.store import Measured
from benchmarks.limit import Rates
from benchmarks.results import CaseResult, SubjectResult

LOSSES = [3.0, 2.5, 2.0]
RATES = Rates({"PyTorch's matrix product": 1e12}, 2e12)


def subject(name: str, milliseconds: Sequence[float] = (), **more: Any) -> SubjectResult:
    """Return the result of a subject whose steps took these times in milliseconds."""
    seconds = {"step": [each / 1e3 for each in milliseconds]} if milliseconds else {}
    return SubjectResult(name, **{"losses": LOSSES, "memory_mib": [50.0, 100.0], "seconds": seconds, **more})


def case(*subjects: SubjectResult, **more: Any) -> CaseResult:
    """Return the result of a case with 10 million multiply-adds and a physical limit of 10 ms per step."""
    given = {
        "case": "net",
        "title": "net, batch 4",
        "precision": "float32",
        "parameters": 1_000,
        "multiply_adds": {"forward": 3_000_000, "gradients": 9_000_000, "step": 10_000_000},
        "limit_s": {"forward": 0.003, "gradients": 0.009, "step": 0.010},
        "subjects": subjects,
    }
    return CaseResult(**{**given, **more})


def gpu_subject(name: str, milliseconds: float, **more: Any) -> SubjectResult:
    """Return the result of a GPU subject with this step time, of which forward and backward pass take 80 %."""
    seconds = {"step": [milliseconds / 1e3], "gradients": [0.8 * milliseconds / 1e3]}
    return subject(name, **{"memory_mib": [0.0, 100.0], "seconds": seconds, **more})


def measured(*subjects: SubjectResult, case: str = "alexnet", precision: str = "float32", **more: Any) -> Measured:
    """Return a measurement of a case with 10 billion multiply-adds and a physical limit of 10.1 ms per step."""
    work, limits = {"step": 10**10, "gradients": 10**10}, {"step": 0.0101, "gradients": 0.01}
    result = CaseResult(case, f"{case}, made", precision, 1000, work, limits, list(subjects))
    return Measured(**{"result": result, "rates": RATES, "commit": "abc", "date": "2026-11-22", **more})


def cells(text: str, *beginning: str) -> list[str]:
    """Return all cells of the only Markdown table row whose first cells are ``beginning``."""
    (row,) = [line for line in text.splitlines() if line.startswith(f"| {' | '.join(beginning)} ")]
    return [cell.strip() for cell in row.strip("|").split("|")]
