"""The physical limit of a phase: multiply-adds / best rate + bytes that the optimizer moves / memory bandwidth.

The multiply-adds are counted in the graph before any compiler pass.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.alternate import Contestant
from benchmarks.cases import Case
from benchmarks.machine import ADD_BYTES, CONV_MULTIPLY_ADDS, GEMM_MULTIPLY_ADDS
from benchmarks.process import SubjectError, SubjectProcess
from benchmarks.results import CaseResult
from benchmarks.subjects import SubjectSpec
from runner.engine.compile.cost import node_cost
from runner.engine.compile.program import Client
from runner.engine.graph import Graph

REPEATS = 9
OPTIMIZER_BYTES_PER_PARAMETER = 5 * 4
"""Momentum reads weight, velocity and gradient, and writes weight and velocity, all float32."""


@dataclass(frozen=True)
class Rates:
    """The best measured rates of a CPU or GPU. multiply_adds_per_s: kernel -> rate; the limit uses the highest."""

    multiply_adds_per_s: Mapping[str, float]
    bytes_per_s: float

    def limit_s(self, phase: str, multiply_adds: int, parameters: int) -> float | None:
        """Return the shortest possible time of a phase in seconds, or None if the precision has no measured rate."""
        if not self.multiply_adds_per_s:
            return None
        arithmetic = multiply_adds / max(self.multiply_adds_per_s.values())
        moved = OPTIMIZER_BYTES_PER_PARAMETER * parameters / self.bytes_per_s if phase == "step" else 0.0
        return arithmetic + moved

    def sentence(self) -> str:
        """Return the rates as text."""
        rates = [f"{rate / 1e9:,.1f} G multiply-adds/s by {by}" for by, rate in self.multiply_adds_per_s.items()]
        return ", ".join([*rates, f"{self.bytes_per_s / 1e9:.1f} GB/s adding arrays"])


def case_result(
    case: Case,
    precision: str,
    parameters: int,
    work: Mapping[str, int],
    rates: Rates,
    contestants: Sequence[Contestant],
) -> CaseResult:
    """Return the results of all implementations with the limit of each phase. work: multiply-adds by phase."""
    limits = {phase: rates.limit_s(phase, count, parameters) for phase, count in work.items()}
    subjects = [contestant.result for contestant in contestants]
    return CaseResult(case.name, case.title, precision, parameters, work, limits, subjects)


MULTIPLYING = frozenset({"conv2d", "conv2d_input_gradient", "conv2d_weight_gradient", "matmul"})
"""The counted ops. The work of all other ops is small in comparison."""


def multiply_adds(graph: Graph, client: Client) -> int:
    """Return the multiply-adds of all nodes that a client runs. No client computes the gradient of the images."""
    needed = {tensor.node for tensor in client.fetches.values()} | set(client.targets)
    total = 0
    for node in reversed(list(graph)):
        if node.name in needed:
            needed.update(tensor.node for tensor in node.inputs)
            needed.update(node.control_inputs)
            if node.op in MULTIPLYING:
                total += node_cost(graph, node).flops // 2
    return total


def measure_rates(threads: int, precision: str) -> Rates:
    """Run each kernel of :mod:`benchmarks.machine` several times and return the best rates."""
    rates = {}
    if precision == "float32":
        rates["NumPy's matrix product"] = GEMM_MULTIPLY_ADDS / _best("gemm", threads, precision)
    try:
        rates["a convolution of runner"] = CONV_MULTIPLY_ADDS / _best("conv", threads, precision)
    except SubjectError as error:
        print(f"rate of a {precision} convolution not measured: {error}", file=sys.stderr, flush=True)
    return Rates(rates, ADD_BYTES / _best("add", threads, precision))


def _best(phase: str, threads: int, precision: str) -> float:
    """Return the seconds of a phase's fastest run in a separate process, whose memory is freed when it ends."""
    spec = SubjectSpec("machine", "", "benchmarks.machine", (str(threads), precision))
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as folder,
        SubjectProcess(spec, threads=threads, log=Path(folder) / "machine.log") as process,
    ):
        process.ask("load")
        return float(min(process.ask("run", phase=phase, times=REPEATS)["seconds"]))
