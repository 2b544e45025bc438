"""Time sums over workers on this machine in runner and in other libraries, from 4 bytes to 64 MiB per worker.

One step of runner, which sums one vector per worker in place, is compared with one blocking call of another library
with the same result. The master of runner times the step, from its request until the last worker's reply.
The other libraries need no such round trip through the master, but every training step of runner has one. The row of 4
bytes shows the cost of the round trip.
"""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.alternate import SETTLING, Contestant
from benchmarks.environments import MissingEnvironmentError
from benchmarks.exchange_protocol import ITEM_BYTES, PUSH_PULL, RING, Exchange
from benchmarks.process import SubjectProcess
from benchmarks.results import SubjectResult, subject_result
from benchmarks.subjects import EXCHANGE_OURS, EXCHANGE_PEERS, SubjectSpec

PREFIX = "collectives/"
COLLECTIVE_CASES = {
    f"{PREFIX}{RING}-2": Exchange(RING, 2),
    f"{PREFIX}{RING}-3": Exchange(RING, 3),
    f"{PREFIX}{RING}-4": Exchange(RING, 4),
    f"{PREFIX}{PUSH_PULL}-2": Exchange(PUSH_PULL, 2),
}
"""Name on the command line -> exchange. Exchanges are measured only if they are named: their tables are long."""

SIZES = (ITEM_BYTES, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
"""The measured sizes of one worker's vector in bytes."""

LARGE = 16 << 20
"""Smallest size in bytes at which bandwidth, not the cost of a message, determines the time."""

_TURN_BYTES = 256 << 20


@dataclass(frozen=True)
class ExchangeResult:
    """One exchange at every size. subjects: results, runner's first; their phase names are sizes in bytes."""

    case: str
    exchange: Exchange
    sizes: tuple[int, ...]
    subjects: tuple[SubjectResult, ...]

    def bandwidth(self, subject: SubjectResult, nbytes: int) -> float | None:
        """Return the bytes of one worker's vector / median seconds; None if the size was not measured."""
        seconds = subject.median(str(nbytes))
        return None if seconds is None else nbytes / seconds

    def of_peer(self, peer: SubjectResult, nbytes: int) -> float | None:
        """Return the ratio of runner's bandwidth to a peer's, or None if one of them was not measured."""
        ours, theirs = self.bandwidth(self.subjects[0], nbytes), self.bandwidth(peer, nbytes)
        return None if ours is None or theirs is None else ours / theirs


def measure_collective(
    name: str, *, rounds: int, turn: int | None, with_peers: bool, sizes: Sequence[int] = SIZES
) -> ExchangeResult:
    """Measure one size after the other, alternating between implementations; drop an implementation with wrong sums."""
    exchange = COLLECTIVE_CASES[name]
    specs = (EXCHANGE_OURS, *(EXCHANGE_PEERS if with_peers else ()))
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, ExitStack() as stack:
        contestants = [_started(spec, exchange, Path(folder), stack) for spec in specs]
        for nbytes in sizes:
            _alternate(contestants, nbytes, rounds=rounds, turn=turn or steps_in_a_turn(nbytes))
    return ExchangeResult(name, exchange, tuple(sizes), tuple(subject_result(each) for each in contestants))


def steps_in_a_turn(nbytes: int) -> int:
    """Return the number of exchanges in a turn: 256 MiB per worker, but at least 5 and at most 50 exchanges."""
    return max(5, min(50, _TURN_BYTES // nbytes))


def _started(spec: SubjectSpec, exchange: Exchange, folder: Path, stack: ExitStack) -> Contestant:
    """Start an implementation. Its processes may use all cores, with one thread each."""
    asked = SubjectSpec(spec.name, spec.environment, spec.module, (*spec.arguments, *exchange.arguments))
    try:
        process = SubjectProcess(asked, threads=1, log=folder / f"{spec.name}.log", pinned=False)
    except MissingEnvironmentError as missing:
        return Contestant(spec.name, None, failure=str(missing))
    contestant = Contestant(spec.name, stack.enter_context(process))
    if started := contestant.ask("start"):
        contestant.versions = started["versions"]
    return contestant


def _alternate(contestants: Sequence[Contestant], nbytes: int, *, rounds: int, turn: int) -> None:
    """Time ``turn`` exchanges per contestant and round; each round begins with the next contestant."""
    for contestant in contestants:
        contestant.ask("exchange", nbytes=nbytes, times=SETTLING)
    for number in range(rounds):
        first = number % len(contestants)
        for contestant in (*contestants[first:], *contestants[:first]):
            answer = contestant.ask("exchange", nbytes=nbytes, times=SETTLING + turn)
            if answer is None:
                continue
            if answer["deviation"] != 0.0:
                contestant.failure = f"sums of {nbytes} bytes: largest error {answer['deviation']:g}, expected 0"
                contestant.seconds.clear()
                continue
            contestant.seconds.setdefault(str(nbytes), []).extend(answer["seconds"][SETTLING:])
