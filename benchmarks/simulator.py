"""``python -m benchmarks simulator``: simulated against real step times on this machine.

A profile is recorded first (``--record``), from runs of instructions in one process and a test of messages between
processes. Then configurations are drawn by a seed, simulated with the profile, and run in turns.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.alternate import rotated
from benchmarks.cells import command_line, publish
from benchmarks.experiments import configuration
from benchmarks.process import SubjectError, SubjectProcess
from benchmarks.simulator_configurations import drawn, profiled
from benchmarks.simulator_page import Compared, page, plot
from benchmarks.subjects import SubjectSpec
from runner.engine.graph import state_dtype
from runner.engine.run.step_driver import bind
from runner.engine.simulate.profile import InstructionSignature
from runner.errors import RunnerError
from runner.system.machine import usable_cores
from runner.training.link_test import with_messages
from runner.training.profiles import profile_here, with_instructions, write_profile
from runner.training.simulation import session_of

PROFILE = Path("benchmarks/results/simulator_profile.json")
SEED, CONFIGURATIONS, ROUNDS, SECONDS = 2027, 44, 5, 2.0
OVERLAPPING = ("async_data", "sandblaster")
WARM_UP, LEAST_STEPS, MOST_STEPS, SIMULATED_STEPS = 5, 5, 400, 6


def described(profile: Path) -> tuple[str, str]:
    """Return overrides that describe this machine by a profile."""
    return ("cluster=this_machine", f"cluster.hardware.kinds.process.profile={profile}")


def simulate(subject: Compared, profile: Path) -> None:
    """Simulate a configuration with a profile."""
    config = configuration([*described(profile), *subject.configuration.overrides()])
    session = session_of(config, 1000)
    driver = bind(session.program.step_driver, session)
    rates = np.zeros(config.optimizer.for_batch(config.train.batch_size).rate_shape, state_dtype(config.precision))
    begin_s, passes = 0.0, 0
    for step in range(driver.warm_up + SIMULATED_STEPS):
        driver.update(step, rates)
        passes += driver.passes
        if step == driver.warm_up - 1:
            begin_s, passes = session.totals().now, 0
    subject.simulated_s = (session.totals().now - begin_s) / passes
    subject.origins = session.origins


def timed(overrides: Sequence[str], seconds: float, folder: Path, *, overlap: bool) -> float:
    """Start a configuration, time updates for about ``seconds``, and end it; return the seconds of one evaluation.

    The median counts; if clients overlap, so that updates do not end one by one, the mean. Other updates are made in
    series, as in training. Raises SubjectError.
    """
    phase = "evaluations" if overlap else "series"
    spec = SubjectSpec("run", "", "benchmarks.configured", tuple(overrides))
    with SubjectProcess(spec, threads=usable_cores(), log=folder / "log", pinned=False) as process:
        process.ask("load")
        warm = process.ask("run", phase=phase, times=WARM_UP)["seconds"]
        count = min(MOST_STEPS, max(LEAST_STEPS, round(seconds / statistics.median(warm))))
        found: dict[str, list[float]] = process.ask("run", phase=phase, times=count)
    each = [step / passes for step, passes in zip(found["seconds"], found["losses"], strict=True)]
    mean = sum(found["seconds"]) / sum(found["losses"])
    return mean if overlap else statistics.median(each)


def record(path: Path, cases: Sequence[str]) -> None:
    """Record the profile; configurations of other cases than ``cases`` are left out."""
    profile = profile_here(path)
    with tempfile.TemporaryDirectory(prefix="benchmark-profile-") as folder:
        profile = with_messages(profile, Path(folder))
    measured = set[tuple[InstructionSignature, int]]()
    for each in profiled():
        if each.setting.case in cases:
            print(f"profile: {each.setting.name}, {each.name}", file=sys.stderr, flush=True)
            profile = with_instructions(profile, configuration(each.overrides()), measured)
    write_profile(path, profile)


def measure(subjects: Sequence[Compared], rounds: int, seconds: float) -> None:
    """Run all subjects in each round; each round begins with another subject. A failure is kept in the subject."""
    with tempfile.TemporaryDirectory(prefix="benchmark-simulator-") as folder:
        for number in range(rounds):
            for subject in rotated(subjects, number * len(subjects) // rounds):
                if subject.failure:
                    continue
                each = subject.configuration
                print(f"round {number + 1}: {each.setting.name}, {each.name}", file=sys.stderr, flush=True)
                overlap = each.strategy in OVERLAPPING
                try:
                    subject.seconds.append(timed(each.overrides(), seconds, Path(folder), overlap=overlap))
                except SubjectError as error:
                    subject.failure = str(error)


def main(arguments: Sequence[str]) -> int:
    """Record the profile, or compare; return 1 if a configuration could not be simulated or run."""
    parser = argparse.ArgumentParser("python -m benchmarks simulator", description=__doc__)
    add = parser.add_argument
    add("--record", action="store_true", help="record the profile and compare nothing")
    add("--profile", type=Path, default=PROFILE, metavar="FILE")
    add("--cases", nargs="+", default=["mlp", "lenet", "resnet20", "alexnet"], help="some of the cases")
    add("--configurations", type=int, default=CONFIGURATIONS, metavar="N")
    add("--seed", type=int, default=SEED)
    add("--rounds", type=int, default=ROUNDS, help="runs of each configuration")
    add("--seconds", type=float, default=SECONDS, help="timed seconds of each run")
    add("--output", type=Path, metavar="FILE", help="write the page to FILE, and its plot next to it")
    given = parser.parse_args(arguments)
    if given.record:
        record(given.profile, given.cases)
        return 0
    chosen = [each for each in drawn(given.seed, given.configurations) if each.setting.case in given.cases]
    subjects = [Compared(each) for each in chosen]
    for subject in subjects:
        try:
            simulate(subject, given.profile)
        except RunnerError as error:
            subject.failure = f"{type(error).__name__}: {error}"
    measure(subjects, given.rounds, given.seconds)
    picture = None if given.output is None else given.output.with_suffix(".png")
    text = page(subjects, command_line(parser, given), picture)
    if picture is not None:
        plot(subjects, picture)
    publish(text, given.output)
    return int(any(each.failure for each in subjects))
