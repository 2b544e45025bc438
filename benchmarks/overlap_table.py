"""The table of :mod:`benchmarks.overlap`."""

from collections.abc import Sequence

from benchmarks.alternate import SETTLING
from benchmarks.cells import markdown, milliseconds
from benchmarks.overlap import WAYS, OverlapResult
from benchmarks.results import LOSSES


def overlap_section(results: Sequence[OverlapResult]) -> str:
    """Return a table of the fraction of the gradient exchange that is overlapped with compute."""
    first = results[0]
    header = ("combine", *(f"{way}, ms" for way in WAYS), "hidden", "quartiles of rounds")
    lines = [
        "## Overlap of exchange and compute, float32",
        "",
        f"sync_data on {first.title}, {first.workers} workers of one thread each, which share the cores.",
        f"Network between workers, emulated: {first.network}; every ordered pair of workers has a separate link.",
        "No network: the same plans without the waits. Blocking: no gradient is sent before the worker has all.",
        "Hidden: (blocking - overlapped) / (blocking - no network), from medians of all steps; quartiles over rounds.",
        f"The three variants take turns. Uncounted steps at the start of a turn: {SETTLING}. Times are medians, with "
        "quartiles, in ms.",
        f"Losses of the first {LOSSES} steps are equal bit for bit in all variants.",
        "",
        markdown(header, [_overlap_row(result) for result in results]),
    ]
    return "\n".join(lines)


def _overlap_row(result: OverlapResult) -> Sequence[str]:
    cells = [result.combine]
    for name in WAYS:
        way = result.way(name)
        low, high = way.quartiles("step")
        cells.append(f"{milliseconds(way.median('step'))} ({milliseconds(low)}-{milliseconds(high)})")
    low, high = result.hidden_quartiles
    return [*cells, f"{result.hidden:.2f}", f"{low:.2f}-{high:.2f}"]
