"""The cost of exchange: ``sync_data`` with one-thread workers against as many one-thread ``single`` runs, and against
data-parallel training in PyTorch.
"""

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.alternate import SETTLING, load
from benchmarks.alternate import started as contestant
from benchmarks.cases import CASES
from benchmarks.cells import NOTHING, markdown, ratio
from benchmarks.compare import WARM_UP
from benchmarks.experiments import prepare
from benchmarks.process import SubjectProcess
from benchmarks.results import SubjectResult
from benchmarks.strategies import configured
from benchmarks.subjects import DDP

PREFIX = "scaling/"
SCALING_CASES = {f"{PREFIX}{name}": CASES[name] for name in ("mlp", "lenet", "resnet20", "cifar_convnet")}
"""Name on the command line -> case; every worker and every ``single`` run has half of the case's batch."""

WORKERS = 2


@dataclass(frozen=True)
class ScalingResult:
    """Seconds of each step. batch: examples per step of one worker and of one ``single`` run.

    connected: steps of sync_data. unconnected: steps of each ``single`` run while the others run too. alone: steps of
    one ``single`` run while no other runs. peer: steps of PyTorch's DistributedDataParallel, without the data pipeline;
    None if it was not asked for.
    """

    case: str
    title: str
    batch: int
    connected: tuple[float, ...]
    unconnected: tuple[tuple[float, ...], ...]
    alone: tuple[float, ...]
    peer: SubjectResult | None = None

    @property
    def connected_rate(self) -> float:
        """Return the examples per second of sync_data."""
        return self.batch * len(self.unconnected) / statistics.median(self.connected)

    @property
    def unconnected_rate(self) -> float:
        """Return the examples per second of all simultaneous ``single`` runs together."""
        return sum(self.batch / statistics.median(seconds) for seconds in self.unconnected)

    @property
    def alone_rate(self) -> float:
        """Return the examples per second of one ``single`` run while no other runs."""
        return self.batch / statistics.median(self.alone)


def measure_scaling(name: str, *, rounds: int, turn: int | None, with_peer: bool) -> ScalingResult:
    """Alternate the measurements in rounds. Raises SubjectError if one of those of runner fails."""
    case = SCALING_CASES[name]
    batch = case.batch // WORKERS
    times = SETTLING + (turn or case.turn)
    connected: list[float] = []
    unconnected: list[list[float]] = [[] for _ in range(WORKERS)]
    alone: list[float] = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, ExitStack() as stack:

        def started(label: str, examples: int, *parallelism: str) -> SubjectProcess:
            spec = configured(label, case, parallelism, threads=1, batch=examples)
            log = Path(folder) / f"{label}.log"
            process = stack.enter_context(SubjectProcess(spec, threads=1, log=log, pinned=False))
            process.ask("load")
            process.ask("run", phase="step", times=WARM_UP)
            return process

        synchronous = started("sync_data", batch * WORKERS, "parallelism=sync_data", f"parallelism.workers={WORKERS}")
        peer = None
        if with_peer:
            prepare(case.overrides(threads=1, batch=batch), Path(folder))
            peer = contestant(DDP.on(folder), Path(folder), stack, threads=1, pinned=False)
            load(peer, "step")
            peer.ask("run", phase="step", times=WARM_UP)
        singles = [started(f"single-{i}", batch, "parallelism=single") for i in range(WORKERS)]
        for _ in range(rounds):
            answer = synchronous.ask("run", phase="series", times=times)
            pairs = zip(answer["seconds"], answer["losses"], strict=True)
            connected += [seconds / updates for seconds, updates in pairs][SETTLING:]
            for single in singles:
                single.send("run", phase="step", times=times)
            for seconds, single in zip(unconnected, singles, strict=True):
                seconds += single.receive()["seconds"][SETTLING:]
            if peer is not None and (found := peer.ask("run", phase="step", times=times)):
                peer.result.seconds.setdefault("step", []).extend(found["seconds"][SETTLING:])
            alone += singles[0].ask("run", phase="step", times=times)["seconds"][SETTLING:]
    each = tuple(tuple(seconds) for seconds in unconnected)
    result = None if peer is None else peer.result
    return ScalingResult(name, case.title, batch, tuple(connected), each, tuple(alone), result)


def scaling_section(results: Sequence[ScalingResult]) -> str:
    """Return a table of the cost of exchange in sync_data."""
    header = ("case", "batch per worker", "sync_data, examples/s", "unconnected runs, examples/s")
    compared = ("sync_data / unconnected", "one run, examples/s", "sync_data / one run", "unconnected / one run")
    peer = ("PyTorch DDP, examples/s", "step of sync_data / of DDP")
    table = markdown([*header, *compared, *peer], [_scaling_row(result) for result in results])
    return f"## Scaling: sync_data against simultaneous unconnected runs, one thread each, float32\n\n{table}"


def _scaling_row(result: ScalingResult) -> Sequence[str]:
    connected, unconnected, alone = result.connected_rate, result.unconnected_rate, result.alone_rate
    return (
        result.case,
        str(result.batch),
        f"{connected:,.1f}",
        f"{unconnected:,.1f}",
        ratio(connected, unconnected),
        f"{alone:,.1f}",
        ratio(connected, alone),
        ratio(unconnected, alone),
        *_peer_cells(result),
    )


def _peer_cells(result: ScalingResult) -> tuple[str, str]:
    """Return the speed of PyTorch and the ratio of the steps, or the reason why there is none."""
    peer = result.peer
    if peer is None or peer.failure:
        return (peer.failure if peer else NOTHING), NOTHING
    seconds = statistics.median(peer.seconds["step"])
    return f"{WORKERS * result.batch / seconds:,.1f}", ratio(statistics.median(result.connected), seconds)
