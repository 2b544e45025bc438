"""Alternating runs: every implementation has a turn in every round, so that machine drift affects all equally."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.environments import MissingEnvironmentError
from benchmarks.process import ANSWER_TIMEOUT_S, SubjectError, SubjectProcess
from benchmarks.protocol import WALL
from benchmarks.results import LOSSES, SubjectResult
from benchmarks.subjects import SubjectSpec

SETTLING = 1
"""Number of discarded runs at the start of a turn. They refill the caches after the turn of another process."""

Item = TypeVar("Item")


@dataclass
class Contestant:
    """A running implementation and its results so far. process: None if the process could not be started."""

    result: SubjectResult
    process: SubjectProcess | None

    def ask(self, do: str, **more: object) -> Mapping[str, Any] | None:
        """Return the answer to a request, or None if the process was dropped earlier or fails now."""
        if self.result.failure or self.process is None:
            return None
        try:
            return self.process.ask(do, **more)
        except SubjectError as error:
            self.result.failure = str(error)
            self.result.seconds.clear()
            return None


def started(
    spec: SubjectSpec,
    folder: Path,
    stack: ExitStack,
    *,
    threads: int,
    pinned: bool = True,
    timeout_s: float | Callable[[], float] = ANSWER_TIMEOUT_S,
) -> Contestant:
    """Start an implementation, which ends when ``stack`` closes; its log is in ``folder``.

    For the options, see :class:`~benchmarks.process.SubjectProcess`.
    """
    log = folder / f"{spec.name}.log".replace(" ", "_")
    try:
        process = SubjectProcess(spec, threads=threads, log=log, pinned=pinned, timeout_s=timeout_s)
    except MissingEnvironmentError as missing:
        return Contestant(SubjectResult(spec.name, failure=str(missing)), None)
    return Contestant(SubjectResult(spec.name), stack.enter_context(process))


def note_versions(contestant: Contestant) -> None:
    """Note the versions of the libraries, and the memory of the process before it creates anything."""
    if answer := contestant.ask("start"):
        contestant.result.versions = answer["versions"]
        contestant.result.memory_mib = (answer["memory_mib"], answer["memory_mib"])


def load(contestant: Contestant, first_phase: str = "") -> None:
    """Let a process create what it runs. first_phase: a phase of which the losses of the first runs are noted."""
    note_versions(contestant)
    contestant.ask("load")
    if first_phase and (answer := contestant.ask("run", phase=first_phase, times=LOSSES)):
        contestant.result.losses = answer["losses"]


def rotated(items: Sequence[Item], number: int) -> Sequence[Item]:
    """Return all items in their order, beginning with that of an index, which starts again after the last item."""
    first = number % max(1, len(items))
    return (*items[first:], *items[:first])


def alternate(contestants: Sequence[Contestant], phase: str, *, rounds: int, turn: int, clock: str = WALL) -> None:
    """Time ``turn`` runs of a phase per contestant and round; each round begins with the next contestant.

    The times are added to the results of each contestant, under the phase. Only one contestant runs at a time.
    clock: a name of :data:`benchmarks.protocol.CLOCKS`.
    """
    for number in range(rounds):
        for contestant in rotated(contestants, number):
            answer = contestant.ask("run", phase=phase, times=SETTLING + turn, clock=clock)
            if answer is not None:
                contestant.result.seconds.setdefault(phase, []).extend(answer["seconds"][SETTLING:])
