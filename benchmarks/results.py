"""The results of a comparison, as plain data for the tables and for ``--json``."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LOSSES = 3
"""Number of first steps whose losses are compared."""


@dataclass(frozen=True)
class Tolerance:
    """Tolerances of a peer's losses, relative to runner's loss and to the change of runner's loss over the steps.

    The second tolerance detects a wrong update even if the loss changes little.
    """

    of_loss: float
    of_change: float

    def holds(self, ours: Sequence[float], theirs: Sequence[float]) -> bool:
        """Return whether every loss is finite and within both tolerances."""
        change = self.of_change * abs(ours[-1] - ours[0])
        return all(
            math.isfinite(their_loss) and abs(their_loss - our_loss) <= min(self.of_loss * abs(our_loss), change)
            for our_loss, their_loss in zip(ours, theirs, strict=True)
        )


TOLERANCES: Mapping[str, Tolerance] = {
    "float32": Tolerance(1e-3, 0.1),
    "tf32": Tolerance(5e-3, 0.2),
    "bfloat16": Tolerance(3e-2, 0.5),
}
"""Tolerances by precision. tf32 (on GPUs): float32 whose products use factors with 10-bit mantissas."""


def method_of_losses(precisions: Sequence[str]) -> str:
    """Return a description of the comparison of losses."""
    tolerances = "; ".join(
        f"{name}: {TOLERANCES[name].of_loss:g} of the loss and {TOLERANCES[name].of_change:g} of its change"
        for name in precisions
    )
    first = f'Losses: losses of the first {LOSSES} steps; "match" means equal to runner\'s'
    return f"{first} within tolerances ({tolerances})."


def compared_losses(result: "CaseResult", subject: "SubjectResult") -> str:
    """Return the losses of runner, or how those of a peer compare with them."""
    losses = ", ".join(f"{loss:.4f}" for loss in subject.losses)
    if subject is result.ours:
        return losses
    return "match" if result.same_computation(subject) else f"different computation: {losses}"


def quartiles(numbers: Sequence[float]) -> tuple[float, float]:
    """Return the first and third quartile; both are the number if there is only one."""
    low, _, high = statistics.quantiles(numbers, n=4, method="inclusive") if len(numbers) > 1 else [numbers[0]] * 3
    return low, high


@dataclass
class SubjectResult:
    """One implementation on one case. failure: reason for missing times. seconds: phase -> time of each run.

    losses: losses of the first steps. memory_mib: peak before the network is built, and after the steps.
    """

    name: str
    failure: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    losses: Sequence[float] = ()
    seconds: dict[str, list[float]] = field(default_factory=dict)
    memory_mib: tuple[float, float] = (0.0, 0.0)

    def median(self, phase: str) -> float | None:
        """Return the median seconds of a phase, or None if the phase was not measured."""
        times = self.seconds.get(phase, ())
        return statistics.median(times) if times else None


@dataclass(frozen=True)
class CaseResult:
    """One case in one precision. subjects: results, runner's first. multiply_adds, limit_s: values by phase."""

    case: str
    title: str
    precision: str
    parameters: int
    multiply_adds: Mapping[str, int]
    limit_s: Mapping[str, float | None]
    subjects: Sequence[SubjectResult]

    @property
    def ours(self) -> SubjectResult:
        return self.subjects[0]

    def same_computation(self, peer: SubjectResult) -> bool:
        """Return whether a peer's losses agree with runner's; False if runner has no losses."""
        ours = self.ours.losses
        return bool(ours and peer.losses) and TOLERANCES[self.precision].holds(ours, peer.losses)

    def comparable(self) -> list[SubjectResult]:
        """Return the peers that did not fail and whose losses agree with runner's."""
        return [peer for peer in self.subjects[1:] if not peer.failure and self.same_computation(peer)]

    def best_peer(self, phase: str) -> SubjectResult | None:
        """Return the comparable peer with the shortest median of a phase."""
        timed = [(median, peer) for peer in self.comparable() if (median := peer.median(phase)) is not None]
        return min(timed, key=lambda pair: pair[0])[1] if timed else None

    def leanest_peer(self) -> SubjectResult | None:
        """Return the comparable peer with the smallest peak memory."""
        return min(self.comparable(), key=lambda peer: peer.memory_mib[1], default=None)
