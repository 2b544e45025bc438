"""The table of :mod:`benchmarks.overlap`."""

from collections.abc import Sequence

from benchmarks.alternate import SETTLING
from benchmarks.cells import markdown, milliseconds
from benchmarks.overlap import WAYS, OverlapResult
from benchmarks.results import LOSSES


def overlap_section(results: Sequence[OverlapResult]) -> str:
    """Return a table of how much of the gradient exchange is overlapped with compute."""
    first = results[0]
    header = ("combine", *(f"{way}, ms" for way in WAYS), "hidden", "quartiles of rounds")
    lines = [
        "## Overlap of exchange and compute, float32",
        "",
        f"sync_data on {first.title}, {first.workers} workers of one thread each, which share the cores.",
        f"Network between workers, emulated: {first.network}; every ordered pair of workers has a link of its own.",
        "No network: the same plans without the waits. Blocking: no gradient is sent before all exist on the worker.",
        "Hidden: (blocking - overlapped) / (blocking - no network), of medians over all steps and by rounds.",
        f"The three take turns, and the first {SETTLING} of a turn's steps does not count. Times are medians, with "
        "quartiles, in ms.",
        f"Losses of the first {LOSSES} steps are equal bit for bit in all three.",
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
