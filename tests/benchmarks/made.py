"""Results made by hand, for tests of what is done with them."""

from collections.abc import Sequence
from typing import Any

from benchmarks.results import CaseResult, SubjectResult

LOSSES = (3.0, 2.5, 2.0)


def subject(name: str, milliseconds: Sequence[float] = (), **more: Any) -> SubjectResult:
    """A subject whose steps took so long."""
    seconds = {"step": tuple(each / 1e3 for each in milliseconds)} if milliseconds else {}
    return SubjectResult(name, **{"losses": LOSSES, "memory_mib": (50.0, 100.0), "seconds": seconds, **more})


def case(*subjects: SubjectResult, **more: Any) -> CaseResult:
    """A case of 10 million multiply-adds a step, whose limit is 10 ms."""
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
