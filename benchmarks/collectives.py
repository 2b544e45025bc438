"""Time sums over workers on this machine in runner and in other libraries, from 4 bytes to 64 MiB per worker.

One step of runner, which sums one vector per worker in place, is compared with one blocking call of another library
with the same result. The master of runner times a series of steps, from its request until the last worker's reply, as
in training. The other libraries need no such round trip.
"""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.alternate import SETTLING, alternate, note_versions, started
from benchmarks.cells import NOTHING, markdown, ratio, spread
from benchmarks.exchange_protocol import ITEM_BYTES, PUSH_PULL, RING, Exchange
from benchmarks.results import SubjectResult
from benchmarks.subjects import EXCHANGE_OURS, EXCHANGE_PEERS
from runner.engine.cluster.transport.messages import MOST_STEPS

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
    subjects: Sequence[SubjectResult]


def measure_collective(
    name: str, *, rounds: int, turn: int | None, with_peers: bool, sizes: Sequence[int] = SIZES
) -> ExchangeResult:
    """Measure one size after the other, alternating between implementations; one with wrong sums is dropped.

    The processes of an implementation may use all cores, with one thread each.
    """
    exchange = COLLECTIVE_CASES[name]
    specs = (EXCHANGE_OURS, *(EXCHANGE_PEERS if with_peers else ()))
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, ExitStack() as stack:
        asked = [replace(spec, arguments=(*spec.arguments, *exchange.arguments)) for spec in specs]
        contestants = [started(spec, Path(folder), stack, threads=1, pinned=False) for spec in asked]
        for contestant in contestants:
            note_versions(contestant)
        for nbytes in sizes:
            for contestant in contestants:
                contestant.ask("run", phase=str(nbytes), times=SETTLING)
            alternate(contestants, str(nbytes), rounds=rounds, turn=turn or steps_in_a_turn(nbytes))
    return ExchangeResult(name, exchange, tuple(sizes), [each.result for each in contestants])


def steps_in_a_turn(nbytes: int) -> int:
    """Return the number of exchanges in a turn: 256 MiB per worker, but at least 5 and at most 50 exchanges."""
    return max(5, min(50, _TURN_BYTES // nbytes))


_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"))


def collectives_section(results: Sequence[ExchangeResult]) -> str:
    """Return a description of the measurement and a table for each exchange."""
    return "\n\n".join([f"## Collectives, float32\n\n{_METHOD}", *map(_one, results)])


_METHOD = f"""Every worker has a vector of the given size, which is replaced by the sum of all vectors. Steps of
runner run in series, as in training, with one request from its master to every process and one reply from each for up
to {MOST_STEPS} steps; the time of a step is its share. The other libraries have no master. Their time is that of the
slowest rank in one blocking call after a barrier: `MPI_Allreduce` in place, `all_reduce` of torch.distributed, or, for
push-pull, a send and a receive by each worker and the addition on the server in between. All libraries use one thread
per process and otherwise their default settings; processes of other libraries use no core while they wait for their
turn. After every turn, the sums are compared with the expected sums. Times are medians with quartiles, in ms; GB/s is
the size divided by the median. The target for {LARGE >> 20} MiB and more is at least 0.9 times the bandwidth of every
other library."""


def size_text(nbytes: int) -> str:
    """Return a number of bytes as text, in the largest unit that gives a whole number."""
    for unit, name in _UNITS:
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def _one(result: ExchangeResult) -> str:
    ours, *peers = result.subjects
    workers = result.exchange.workers
    what = "ring all-reduce" if result.exchange.collective == RING else "push-pull with one server"
    header = ["size", *_header(ours)]
    for peer in (each for each in peers if not each.failure):
        header += [*_header(peer), f"{ours.name} / {peer.name}"]
    lines = [f"### {what}, {workers} workers", "", markdown(header, [_row(result, nbytes) for nbytes in result.sizes])]
    missing = [f"- {each.name}: {each.failure}" for each in result.subjects if each.failure]
    return "\n".join([*lines, *(["", *missing] if missing else [])])


def _header(subject: SubjectResult) -> tuple[str, str]:
    return f"{subject.name}, ms", "GB/s"


def _row(result: ExchangeResult, nbytes: int) -> list[str]:
    ours, *peers = result.subjects
    cells = [size_text(nbytes), *_cells(ours, nbytes)]
    for peer in (each for each in peers if not each.failure):
        # The ratio of bandwidths is the inverse ratio of times.
        cells += [*_cells(peer, nbytes), ratio(peer.median(str(nbytes)), ours.median(str(nbytes)))]
    return cells


def _cells(subject: SubjectResult, nbytes: int) -> tuple[str, str]:
    """Return the cells of the times and of the bandwidth."""
    seconds = subject.median(str(nbytes))
    if seconds is None:
        return NOTHING, NOTHING
    return spread(subject.seconds[str(nbytes)]), f"{nbytes / seconds / 1e9:.3g}"
