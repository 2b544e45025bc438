"""Alternating runs: every implementation has a turn in every round, so that machine drift affects all equally."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.process import SubjectError

SETTLING = 1
"""Number of discarded runs at the start of a turn. They refill the caches after the turn of another process."""


class Asked(Protocol):
    """A process that answers the requests of :mod:`benchmarks.protocol`."""

    def ask(self, do: str, **more: object) -> dict[str, Any]:
        """Send a request and return the answer. Raises SubjectError."""
        ...


@dataclass
class Contestant:
    """A running implementation and its results so far.

    process: None if the process could not be started. failure: reason why the process was dropped, else "".
    seconds: phase -> time of each run. memory_mib: peak memory before the network is built, and at the end.
    """

    name: str
    process: Asked | None
    failure: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    seconds: dict[str, list[float]] = field(default_factory=dict)
    memory_mib: tuple[float, float] = (0.0, 0.0)

    def ask(self, do: str, **more: object) -> Mapping[str, Any] | None:
        """Return the answer to a request, or None if the process was dropped earlier or fails now."""
        if self.failure or self.process is None:
            return None
        try:
            return self.process.ask(do, **more)
        except SubjectError as error:
            self.failure = str(error)
            self.seconds.clear()
            return None


def alternate(contestants: Sequence[Contestant], phase: str, *, rounds: int, turn: int, clock: str = "wall") -> None:
    """Time ``turn`` runs of a phase per contestant and round; each round begins with the next contestant.

    The times are added to the ``seconds`` of each contestant, under the phase. Only one contestant runs at a time.
    clock: "wall" or "cpu", see :data:`benchmarks.protocol.CLOCKS`.
    """
    for round_number in range(rounds):
        first = round_number % max(1, len(contestants))
        for contestant in (*contestants[first:], *contestants[:first]):
            answer = contestant.ask("run", phase=phase, times=SETTLING + turn, clock=clock)
            if answer is not None:
                contestant.seconds.setdefault(phase, []).extend(answer["seconds"][SETTLING:])
