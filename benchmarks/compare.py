"""Measure one case: write its problem, start and warm up every implementation, and time them in alternating turns."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.alternate import Contestant, alternate
from benchmarks.cases import Case
from benchmarks.environments import MissingEnvironmentError
from benchmarks.experiments import timed_experiment
from benchmarks.limit import Rates
from benchmarks.prepare import prepare
from benchmarks.process import SubjectProcess
from benchmarks.protocol import PHASES
from benchmarks.results import LOSSES, CaseResult, subject_result
from benchmarks.subjects import SubjectSpec
from benchmarks.timed_single import CLIENTS
from benchmarks.work import multiply_adds

WARM_UP = 2
"""Number of warm-up runs of a phase. "step" has additional runs before, whose losses are compared."""


@dataclass(frozen=True)
class Settings:
    """Settings of a comparison. turn: runs per turn; if None, the number in the case."""

    rounds: int = 5
    turn: int | None = None
    threads: int = 2
    phases: tuple[str, ...] = PHASES


def compare(case: Case, precision: str, settings: Settings, specs: Sequence[SubjectSpec], rates: Rates) -> CaseResult:
    """Measure a case. The first of ``specs`` is runner. Raises ConfigError for an unknown model."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name, ExitStack() as stack:
        problem = prepare(case.overrides(threads=settings.threads, precision=precision), Path(name))
        contestants = [_started(spec.on(name), Path(name), settings, stack) for spec in specs]
        _measure(contestants, settings, settings.turn or case.turn)
        parameters = sum(problem.variable(each).size for each in problem.trainable)
    work = phase_work(case)
    limits = {phase: rates.limit_s(phase, count, parameters) for phase, count in work.items()}
    subjects = tuple(subject_result(contestant) for contestant in contestants)
    return CaseResult(case.name, case.title, precision, parameters, work, limits, subjects)


def phase_work(case: Case) -> dict[str, int]:
    """Return the number of multiply-adds in each phase of a case."""
    program = timed_experiment(case.overrides(threads=1, precision="float32")).program
    return {phase: multiply_adds(program.graph, program.clients[CLIENTS[phase]]) for phase in PHASES}


def _started(spec: SubjectSpec, folder: Path, settings: Settings, stack: ExitStack) -> Contestant:
    """Start an implementation and run its first steps while no other implementation runs."""
    try:
        process = SubjectProcess(spec, threads=settings.threads, log=folder / f"{spec.name}.log")
    except MissingEnvironmentError as missing:
        return Contestant(spec.name, None, failure=str(missing))
    contestant = Contestant(spec.name, stack.enter_context(process))
    if started := contestant.ask("start"):
        contestant.versions = started["versions"]
        contestant.memory_mib = (started["memory_mib"], started["memory_mib"])
    contestant.ask("load")
    if first := contestant.ask("run", phase="step", times=LOSSES):
        contestant.losses = tuple(first["losses"])
    contestant.ask("run", phase="step", times=WARM_UP)
    return contestant


def _measure(contestants: Sequence[Contestant], settings: Settings, turn: int) -> None:
    """Time each phase in alternating turns. Memory is read after "step", before the other phases allocate more."""
    if "step" in settings.phases:
        alternate(contestants, "step", rounds=settings.rounds, turn=turn)
    for contestant in contestants:
        if answer := contestant.ask("memory"):
            contestant.memory_mib = (contestant.memory_mib[0], answer["memory_mib"])
    for phase in (phase for phase in settings.phases if phase != "step"):
        for contestant in contestants:
            contestant.ask("run", phase=phase, times=WARM_UP)
        alternate(contestants, phase, rounds=settings.rounds, turn=turn)
