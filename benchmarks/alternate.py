"""Alternating runs: every subject has a turn in every round, so that a drift of the machine affects all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.process import SubjectError

SETTLING = 1
"""Runs at the start of a turn that do not count: another subject has just used caches and cores."""


class Asked(Protocol):
    """A process that answers requests of :mod:`benchmarks.protocol`."""

    def ask(self, do: str, **more: object) -> dict[str, Any]:
        """Send a request and wait for the answer; raises SubjectError."""
        ...


@dataclass
class Contestant:
    """A running subject and its results so far.

    process: None if it could not be started. failure: reason why it was dropped, "" if it was not.
    seconds: phase -> time of each run. memory_mib: peak before the network was made, and later.
    """

    name: str
    process: Asked | None
    failure: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    seconds: dict[str, list[float]] = field(default_factory=dict)
    memory_mib: tuple[float, float] = (0.0, 0.0)

    def ask(self, do: str, **more: object) -> Mapping[str, Any] | None:
        """Return the answer to a request; None if the subject was dropped before or fails now."""
        if self.failure or self.process is None:
            return None
        try:
            return self.process.ask(do, **more)
        except SubjectError as error:
            self.failure = str(error)
            self.seconds.clear()
            return None


def alternate(contestants: Sequence[Contestant], phase: str, *, rounds: int, turn: int) -> None:
    """Time ``turn`` runs of a phase per subject and round; every round begins with another subject.

    Seconds are added to those of each contestant, under the phase. The others wait for a request meanwhile.
    """
    for round_number in range(rounds):
        first = round_number % max(1, len(contestants))
        for contestant in (*contestants[first:], *contestants[:first]):
            answer = contestant.ask("run", phase=phase, times=SETTLING + turn)
            if answer is not None:
                contestant.seconds.setdefault(phase, []).extend(answer["seconds"][SETTLING:])
