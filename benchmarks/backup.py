"""The benefit of backup workers: ``sync_data`` with and without them, on an emulated network with slow workers.

``python -m benchmarks backup``: see its ``--help``.
"""

import argparse
import datetime
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.alternate import SETTLING
from benchmarks.cases import CASES
from benchmarks.cells import markdown
from benchmarks.environments import ROOT
from benchmarks.experiments import configuration
from runner.engine.run.step_driver import bind
from runner.records.run_directory import RunDirectory
from runner.records.summary import cpu_model, git_commit, step_time
from runner.strategies.synchronous.first_arrivals import CONTRIBUTORS
from runner.system.machine import usable_cores
from runner.training.build import build, open_session
from runner.training.trainer import train_step

CASE = CASES["resnet20"]
BATCH, WORKERS = 32, 4
SERVERS = ("parallelism=sync_data", f"parallelism.workers={WORKERS}", "parallelism.combine=parameter_server")
NETWORK = ("cluster=slow_network", "train.log_every=1000000")
STRAGGLERS = (
    "cluster.stragglers.distribution=lognormal",
    "cluster.stragglers.median_ms=200",
    "cluster.stragglers.sigma=1",
)

SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "4 workers, none of them slow": (*SERVERS, *NETWORK),
    "4 workers": (*SERVERS, *NETWORK, *STRAGGLERS),
    "4 workers and 1 backup worker": (*SERVERS, *NETWORK, *STRAGGLERS, "parallelism.backup_workers=1"),
}
"""The compared configurations: name -> overrides."""


@dataclass
class Subject:
    """One running configuration. seconds: times of the timed steps. record: for each step, the workers whose
    contributions were applied or dropped; empty without backup workers. emulated: description of the emulated network.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    record: Sequence[Mapping[str, Any]] = ()
    emulated: str = ""

    def start(self, overrides: Sequence[str], stack: ExitStack) -> None:
        """Start the processes, which end when ``stack`` closes."""
        self._experiment = build(configuration(overrides))
        self.emulated = str(self._experiment.emulation)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-run-"))
        directory = stack.enter_context(RunDirectory.open(Path(folder) / "run", resume=False))
        session = stack.enter_context(open_session(self._experiment, directory, check_finite=False))
        session.run("init")
        self._step_driver = bind(self._experiment.program.step_driver, session)
        self._step = 0

    def take_turn(self, steps: int) -> None:
        """Run :data:`SETTLING` untimed steps, then time ``steps`` steps. All steps have ended on return."""
        for number in range(SETTLING + steps):
            started = time.perf_counter()
            train_step(self._step_driver, self._experiment, self._step)
            if number >= SETTLING:
                self.seconds.append(time.perf_counter() - started)
            self._step += 1
        self._step_driver.synchronize()
        self.record = self._step_driver.decisions().get(CONTRIBUTORS, ())


def measure(rounds: int, steps: int) -> list[Subject]:
    """Time all configurations in turns, one at a time; each round begins with the next configuration."""
    with ExitStack() as stack:
        subjects = [Subject(name) for name in SUBJECTS]
        for subject in subjects:
            case = CASE.overrides(threads=1, parallelism=SUBJECTS[subject.name], batch=BATCH, batches=16)
            subject.start(case, stack)
        for number in range(rounds):
            first = number % len(subjects)
            for subject in (*subjects[first:], *subjects[:first]):
                subject.take_turn(steps)
    return subjects


def document(subjects: Sequence[Subject], command: str) -> str:
    """Return the tables and a description of the measurement."""
    slow = next(subject for subject in subjects if subject.record)
    parts = [
        "# Backup workers",
        "\n".join(
            [
                f"- CPU: {cpu_model()}, {usable_cores()} cores",
                f"- commit: {git_commit(ROOT) or '-'}",
                f"- date: {datetime.datetime.now(tz=datetime.UTC).date()}",
                f"- emulated: {slow.emulated}",
                f"- command: `{command}`",
            ]
        ),
        f"{CASE.name}, float32; each update uses {BATCH} examples. There is one parameter server; each process has "
        f"one thread.\nThe configurations took turns. Untimed steps at the start of each turn: {SETTLING}.\n"
        "All configurations with slow workers use the same delays, determined by seed, worker and step.",
        f"## Step\n\n{_steps(subjects)}",
        f"## Contributions of each worker in {len(slow.record)} steps\n\n{_shares(slow.record)}",
        "Counted: used in an update. Dropped: begun, but the step ended before the worker's contribution arrived.\n"
        "Not begun: the worker was still computing an earlier step.",
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Measure, print the document, and write it to the output file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks backup", description="Measure backup workers.")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each configuration")
    parser.add_argument("--steps", type=int, default=15, help="steps in a turn")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the tables to this file")
    given = parser.parse_args(arguments)
    command = f"python -m benchmarks backup --rounds {given.rounds} --steps {given.steps}"
    text = document(measure(given.rounds, given.steps), command)
    if given.output is not None:
        given.output.write_text(text)
    print(text, end="")
    return 0


def _steps(subjects: Sequence[Subject]) -> str:
    header = ("configuration", "steps", "median, ms", "p10-p90, ms", "mean, ms", "examples/s", "median / 4 workers")
    base = statistics.median(subjects[1].seconds)
    rows = []
    for subject in subjects:
        spread = step_time(subject.seconds)
        mean = statistics.mean(subject.seconds)
        rows.append(
            (
                subject.name,
                str(len(subject.seconds)),
                f"{spread['median'] * 1e3:.0f}",
                f"{spread['p10'] * 1e3:.0f}-{spread['p90'] * 1e3:.0f}",
                f"{mean * 1e3:.0f}",
                f"{BATCH / mean:.0f}",
                f"{spread['median'] / base:.2f}",
            )
        )
    return markdown(header, rows)


def _shares(record: Sequence[Mapping[str, Any]]) -> str:
    header = ("worker", "counted", "dropped", "examples dropped", "not begun")
    rows = []
    for worker in range(WORKERS + 1):
        counted = sum(worker in line["contributors"] for line in record)
        late = [each["examples"] for line in record for each in line["dropped"] if each["worker"] == worker]
        rows.append((str(worker), str(counted), str(len(late)), str(sum(late)), str(len(record) - counted - len(late))))
    return markdown(header, rows)
