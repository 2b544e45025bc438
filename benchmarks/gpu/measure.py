"""Measure one network in one precision: start all processes, warm them up one by one, then time them in turns."""

import importlib.util
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.alternate import Contestant, alternate, load, started
from benchmarks.cases import Case
from benchmarks.gpu.deadline import Deadline
from benchmarks.gpu.networks import workload_of
from benchmarks.gpu.resident import resident_single
from benchmarks.limit import Rates, case_result, multiply_adds
from benchmarks.peers import gpu_sizes
from benchmarks.problem import load_problem
from benchmarks.process import SubjectError
from benchmarks.results import LOSSES, CaseResult
from benchmarks.subjects import SubjectSpec
from benchmarks.timed_single import CLIENTS

PHASES = ("step", "gradients")
"""The timed phases: the training step and, as in convnet-benchmarks, forward and backward pass without the update."""

QUICK, COMPILED = ("channels-last", "graph"), ("reduce-overhead", "max-autotune")
MODES = (*QUICK, *COMPILED)
"""Modes of :mod:`benchmarks.peers.torch_gpu_peer`. The compiled modes take minutes to start."""

UNKNOWN = Rates({}, 0.0)
"""Placeholder for rates that were not measured."""

COMPARE_PLANS = "--compare-plans"
"""Option of ``benchmarks gpu`` and ``benchmarks.gpu.ours`` to time the plans of cuDNN and use the fastest."""

WARM_UP = 5
TURNS_S = 20.0
"""Seconds that are reserved for the turns during loading and warm-up."""


@dataclass(frozen=True)
class Settings:
    """Settings of a measurement.

    device: "cuda", or "cpu" to try the benchmark. turn: runs in a turn. compare_plans: see :data:`COMPARE_PLANS`.
    """

    device: str = "cuda"
    rounds: int = 8
    turn: int = 10
    compare_plans: bool = False


def measure(
    case: Case, precision: str, modes: Sequence[str], folder: Path, settings: Settings, rates: Rates, deadline: Deadline
) -> CaseResult:
    """Measure a case whose problem is in ``folder``. A process that answers too late is dropped."""
    options = (COMPARE_PLANS,) if settings.compare_plans else ()
    ours = SubjectSpec("runner", "", "benchmarks.gpu.ours", (settings.device, precision, case.name, *options))
    specs = [ours, *(_peer(settings.device, precision, mode) for mode in modes)]
    with ExitStack() as stack:
        with deadline.keeping(TURNS_S):
            contestants = [_started(spec.on(str(folder)), folder, deadline, stack) for spec in specs]
            with ThreadPoolExecutor(len(contestants)) as pool:
                list(pool.map(load, contestants))
            for contestant in contestants:
                _warm(contestant)
        for phase in PHASES:
            alternate(contestants, phase, rounds=settings.rounds, turn=settings.turn)
        for contestant in contestants:
            if answer := contestant.ask("memory"):
                contestant.result.memory_mib = (0.0, answer["memory_mib"])
    program = resident_single(workload_of(case, "float32"))
    work = {phase: multiply_adds(program.graph, program.clients[CLIENTS[phase]]) for phase in PHASES}
    return case_result(case, precision, load_problem(folder).parameters, work, rates, contestants)


def measure_rates(settings: Settings, precisions: Sequence[str], folder: Path, deadline: Deadline) -> dict[str, Rates]:
    """Return the rates of PyTorch's matrix products and copies by precision. Raises SubjectError if PyTorch fails."""
    device = settings.device
    spec = SubjectSpec("rates", torch_environment(), "benchmarks.peers.gpu_rates", (device,))
    with ExitStack() as stack:
        contestant = _started(spec, folder, deadline, stack)
        load(contestant)
        for phase in (*precisions, gpu_sizes.COPY):
            alternate([contestant], phase, rounds=1, turn=settings.rounds)
    if contestant.result.failure:
        raise SubjectError(f"rates of the GPU: {contestant.result.failure}")
    seconds = contestant.result.seconds
    copying = gpu_sizes.moved(device) / min(seconds[gpu_sizes.COPY])
    work = gpu_sizes.multiply_adds(device)
    return {each: Rates({"PyTorch's matrix product": work / min(seconds[each])}, copying) for each in precisions}


def torch_environment() -> str:
    """Return the environment of PyTorch: "" if the current one has PyTorch, else "torch"."""
    return "" if importlib.util.find_spec("torch") else "torch"


def _peer(device: str, precision: str, mode: str) -> SubjectSpec:
    module, arguments = "benchmarks.peers.torch_gpu_peer", (device, precision, mode)
    return SubjectSpec(f"torch-{mode}", torch_environment(), module, arguments)


def _started(spec: SubjectSpec, folder: Path, deadline: Deadline, stack: ExitStack) -> Contestant:
    return started(spec, folder, stack, threads=os.cpu_count() or 1, pinned=False, timeout_s=deadline.patience_s)


def _warm(contestant: Contestant) -> None:
    """Run one process alone, so that it compiles and chooses its kernels before the turns."""
    if first := contestant.ask("run", phase=PHASES[0], times=LOSSES):
        contestant.result.losses = first["losses"]
    for phase in PHASES:
        contestant.ask("run", phase=phase, times=WARM_UP)
