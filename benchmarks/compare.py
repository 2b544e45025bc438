"""Measure one case: store the network and the batch, start every implementation, and time them in alternating turns."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.alternate import Contestant, alternate, load, started
from benchmarks.cases import Case
from benchmarks.experiments import prepare, timed_experiment
from benchmarks.limit import Rates, case_result, multiply_adds
from benchmarks.protocol import PHASES
from benchmarks.results import CaseResult
from benchmarks.subjects import SubjectSpec
from benchmarks.timed_single import CLIENTS

WARM_UP = 2
"""Number of warm-up runs of a phase. Before them, "step" has additional runs, and their losses are compared."""


@dataclass(frozen=True)
class Settings:
    """Settings of a comparison. turn: runs per turn; if None, the number in the case."""

    rounds: int = 5
    turn: int | None = None
    threads: int = 2
    phases: tuple[str, ...] = PHASES


def compare(case: Case, precision: str, settings: Settings, specs: Sequence[SubjectSpec], rates: Rates) -> CaseResult:
    """Measure a case. The first entry of ``specs`` must be runner itself. Raises ConfigError for an unknown model."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name, ExitStack() as stack:
        folder = Path(name)
        problem = prepare(case.overrides(threads=settings.threads, precision=precision), folder)
        contestants = []
        for spec in specs:
            contestants.append(started(spec.on(name), folder, stack, threads=settings.threads))
            # The first steps of an implementation run while no other implementation runs.
            load(contestants[-1], "step")
            contestants[-1].ask("run", phase="step", times=WARM_UP)
        _measure(contestants, settings, settings.turn or case.turn)
        parameters = problem.parameters
    return case_result(case, precision, parameters, phase_work(case), rates, contestants)


def phase_work(case: Case) -> dict[str, int]:
    """Return the number of multiply-adds in each phase of a case."""
    program = timed_experiment(case.overrides(threads=1, precision="float32")).program
    return {phase: multiply_adds(program.graph, program.clients[CLIENTS[phase]]) for phase in PHASES}


def _measure(contestants: Sequence[Contestant], settings: Settings, turn: int) -> None:
    """Time each phase in alternating turns. Memory is measured after "step", before the other phases allocate more."""
    if "step" in settings.phases:
        alternate(contestants, "step", rounds=settings.rounds, turn=turn)
    for contestant in contestants:
        if answer := contestant.ask("memory"):
            contestant.result.memory_mib = (contestant.result.memory_mib[0], answer["memory_mib"])
    for phase in (phase for phase in settings.phases if phase != "step"):
        for contestant in contestants:
            contestant.ask("run", phase=phase, times=WARM_UP)
        alternate(contestants, phase, rounds=settings.rounds, turn=turn)
