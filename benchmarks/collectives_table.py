"""The tables of :mod:`benchmarks.collectives`."""

from collections.abc import Sequence

from benchmarks.cells import NOTHING, markdown, milliseconds, ratio
from benchmarks.collectives import LARGE, ExchangeResult
from benchmarks.exchange_protocol import RING
from benchmarks.results import SubjectResult

_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"))


def collectives_section(results: Sequence[ExchangeResult]) -> str:
    """Return a description of the measurement and a table for each exchange."""
    return "\n\n".join([f"## Collectives, float32\n\n{_METHOD}", *map(_one, results)])


_METHOD = f"""Every worker has a vector of the given size, which is replaced by the sum of all vectors. A step of runner
includes a request from its master to every process and a reply from each, because every training step has them; the
time at 4 B consists almost entirely of these messages. The other libraries have no master. Their time is that of the
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
    cells = [size_text(nbytes), *_cells(result, ours, nbytes)]
    for peer in (each for each in peers if not each.failure):
        cells += [*_cells(result, peer, nbytes), ratio(result.of_peer(peer, nbytes), 1.0)]
    return cells


def _cells(result: ExchangeResult, subject: SubjectResult, nbytes: int) -> tuple[str, str]:
    bandwidth = result.bandwidth(subject, nbytes)
    if bandwidth is None:
        return NOTHING, NOTHING
    low, high = subject.quartiles(str(nbytes))
    middle = milliseconds(subject.median(str(nbytes)))
    return f"{middle} ({milliseconds(low)}-{milliseconds(high)})", f"{bandwidth / 1e9:.3g}"
