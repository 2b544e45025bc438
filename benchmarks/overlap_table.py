"""The table of :mod:`benchmarks.overlap`."""

from collections.abc import Sequence

from benchmarks.alternate import SETTLING
from benchmarks.cells import markdown, milliseconds
from benchmarks.overlap import WAYS, OverlapResult
from benchmarks.results import LOSSES


def overlap_section(results: Sequence[OverlapResult]) -> str:
    """Return a table of the fraction of the gradient exchange that is overlapped with compute."""
    first = results[0]
    header = ("combine", *(f"{way}, ms" for way in WAYS), "hidden", "hidden, quartiles over rounds")
    lines = [
        "## Overlap of exchange and compute, float32",
        "",
        f"sync_data on {first.title}, {first.workers} workers of one thread each, which share the cores.",
        f"Network between workers, emulated: {first.network}; every ordered pair of workers has a separate link.",
        "No network: the overlapped plans without the waits that emulate the network.",
        "Blocking: a worker sends no gradient before it has computed all gradients.",
        "Hidden: (blocking - overlapped) / (blocking - no network), from the medians of all steps.",
        f"The three variants take turns. Discarded steps at the start of each turn: {SETTLING}. Times are medians, "
        "with quartiles, in ms.",
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
