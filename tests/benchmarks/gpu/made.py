"""Results of a GPU made by hand."""

from typing import Any

from benchmarks.gpu.store import Measured
from benchmarks.limit import Rates
from benchmarks.results import CaseResult, SubjectResult
from tests.benchmarks.made import LOSSES

RATES = Rates({"PyTorch's matrix product": 1e12}, 2e12)


def subject(name: str, milliseconds: float, **more: Any) -> SubjectResult:
    """A subject whose phases took so long: forward and backward four fifths of the step."""
    seconds = {"step": (milliseconds / 1e3,), "gradients": (0.8 * milliseconds / 1e3,)}
    return SubjectResult(name, **{"losses": LOSSES, "memory_mib": (0.0, 100.0), "seconds": seconds, **more})


def measured(*subjects: SubjectResult, case: str = "alexnet", precision: str = "float32", **more: Any) -> Measured:
    """A case of 10 billion multiply-adds, whose limit is 10 ms and a little."""
    work, limits = {"step": 10**10, "gradients": 10**10}, {"step": 0.0101, "gradients": 0.01}
    result = CaseResult(case, f"{case}, made", precision, 1000, work, limits, subjects)
    return Measured(**{"result": result, "rates": RATES, "commit": "abc", "date": "2026-11-22", **more})
