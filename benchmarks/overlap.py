"""The fraction of the gradient exchange that is overlapped with compute, on an emulated network.

Three variants of one case alternate: overlapped; blocking, in which all gradients are held back until the last one is
computed; and overlapped without the waits that emulate the network. All three have the same buckets. The first and the
third variant have equal plans.
"""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.alternate import SETTLING, alternate, load, started
from benchmarks.cases import CASES
from benchmarks.cells import markdown, spread
from benchmarks.experiments import configuration
from benchmarks.process import SubjectError
from benchmarks.results import LOSSES, SubjectResult, quartiles
from benchmarks.strategies import configured
from runner.training.build import build

PREFIX = "overlap/"
OVERLAP_CASES = {f"{PREFIX}{combine}": combine for combine in ("sharded_reduce", "ring_all_reduce")}
"""Name on the command line -> ``parallelism.combine``."""

CASE = CASES["resnet20"]
WORKERS = 4
TURN = 10

NO_NETWORK, BLOCKING, OVERLAPPED = "no network", "blocking", "overlapped"
NETWORK = "cluster=slow_network"
WAYS: Mapping[str, tuple[str, ...]] = {
    NO_NETWORK: (NETWORK, "cluster.emulate=false"),
    BLOCKING: (NETWORK, "parallelism.overlap=false"),
    OVERLAPPED: (NETWORK,),
}


@dataclass(frozen=True)
class OverlapResult:
    """The steps of every variant. network: description of the emulated network. turn: steps per round."""

    combine: str
    title: str
    network: str
    turn: int
    ways: Sequence[SubjectResult]

    def way(self, name: str) -> SubjectResult:
        return next(way for way in self.ways if way.name == name)

    @property
    def hidden(self) -> float:
        """Return the fraction of a blocking exchange's network time that overlap hides, from medians of all steps."""
        return _hidden({name: self._seconds(name) for name in WAYS})

    @property
    def hidden_quartiles(self) -> tuple[float, float]:
        """Return the first and third quartile of the hidden fraction over the rounds, from each round's medians."""
        count = len(self._seconds(NO_NETWORK)) // self.turn
        turns = [slice(i * self.turn, (i + 1) * self.turn) for i in range(count)]
        return quartiles([_hidden({name: self._seconds(name)[turn] for name in WAYS}) for turn in turns])

    def _seconds(self, name: str) -> Sequence[float]:
        return self.way(name).seconds["step"]


def _hidden(seconds: Mapping[str, Sequence[float]]) -> float:
    median = {name: statistics.median(each) for name, each in seconds.items()}
    exposed = median[BLOCKING] - median[NO_NETWORK]
    return (median[BLOCKING] - median[OVERLAPPED]) / exposed if exposed > 0 else float("nan")


def measure_overlap(name: str, *, rounds: int, turn: int | None) -> OverlapResult:
    """Time the training step of a case of :data:`OVERLAP_CASES` in every variant.

    Raises SubjectError if a variant fails or if the losses of the variants differ.
    """
    combine, turn = OVERLAP_CASES[name], turn or TURN
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, ExitStack() as stack:
        contestants = []
        for way in WAYS:
            spec = configured(way, CASE, _options(combine, way), threads=1, batch=CASE.batch)
            contestants.append(started(spec, Path(folder), stack, threads=1, pinned=False))
            # The first steps of a variant run while no other variant runs.
            load(contestants[-1], "step")
        alternate(contestants, "step", rounds=rounds, turn=turn)
    ways = [each.result for each in contestants]
    require_same_losses(ways)
    return OverlapResult(combine, CASE.title, _network(combine), turn, ways)


def require_same_losses(ways: Sequence[SubjectResult]) -> None:
    """Raise SubjectError if a variant failed, or if its losses are not equal bit for bit to the first variant's."""
    for way in ways:
        if way.failure:
            raise SubjectError(f"{way.name}: {way.failure}")
        if way.losses != ways[0].losses:
            raise SubjectError(f"{way.name}: losses {way.losses}, expected those of {ways[0].name}: {ways[0].losses}")


def _options(combine: str, way: str) -> tuple[str, ...]:
    exchange = ("parallelism=sync_data", f"parallelism.workers={WORKERS}", f"parallelism.combine={combine}")
    return (*exchange, *WAYS[way])


def _network(combine: str) -> str:
    """Return a description of the emulated network."""
    options = CASE.overrides(threads=1, parallelism=_options(combine, OVERLAPPED))
    return str(build(configuration(options)).emulation)


def overlap_section(results: Sequence[OverlapResult]) -> str:
    """Return a table of the fraction of the gradient exchange that is overlapped with compute."""
    first = results[0]
    header = ("combine", *(f"{way}, ms" for way in WAYS), "hidden", "hidden, quartiles over rounds")
    lines = [
        "## Overlap of exchange and compute, float32",
        "",
        f"sync_data on {first.title}, {WORKERS} workers of one thread each, which share the cores.",
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
    cells = [spread(result.way(name).seconds["step"]) for name in WAYS]
    low, high = result.hidden_quartiles
    return [result.combine, *cells, f"{result.hidden:.2f}", f"{low:.2f}-{high:.2f}"]
