"""The benefit of backup workers: ``sync_data`` with and without them, on an emulated network with slow workers.

``python -m benchmarks backup``: see its ``--help``.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.alternate import SETTLING, rotated
from benchmarks.cases import CASES
from benchmarks.cells import command_line, document, listed, markdown, origin, publish
from benchmarks.configured import Configured
from benchmarks.protocol import timed
from runner.records.summary import step_time
from runner.strategies.synchronous.first_arrivals import CONTRIBUTORS
from runner.system.machine import usable_cores

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
    """One running configuration. seconds: durations of the timed steps. record: for each step, the workers whose
    contributions were applied or dropped; empty without backup workers. emulated: description of the emulated network.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    record: Sequence[Mapping[str, Any]] = ()
    emulated: str = ""

    def start(self, overrides: Sequence[str], stack: ExitStack) -> None:
        """Start the processes, which end when ``stack`` closes."""
        self._training = Configured(overrides, stack)
        self._training.load()
        self._step = self._training.phase("step")
        self.emulated = str(self._training.experiment.emulation)

    def take_turn(self, steps: int) -> None:
        """Run :data:`SETTLING` untimed steps, then time ``steps`` steps. All steps have ended on return."""
        self.seconds += timed(self._step, SETTLING + steps)["seconds"][SETTLING:]
        self._training.step_driver.synchronize()
        self.record = self._training.step_driver.decisions().get(CONTRIBUTORS, ())


def measure(rounds: int, steps: int) -> list[Subject]:
    """Time all configurations in turns, one at a time. In each round, their order is rotated by one."""
    with ExitStack() as stack:
        subjects = [Subject(name) for name in SUBJECTS]
        for subject in subjects:
            case = CASE.overrides(threads=1, parallelism=SUBJECTS[subject.name], batch=BATCH, batches=16)
            subject.start(case, stack)
        for number in range(rounds):
            for subject in rotated(subjects, number):
                subject.take_turn(steps)
    return subjects


def page(subjects: Sequence[Subject], command: str) -> str:
    """Return the tables and a description of the measurement."""
    slow = next(subject for subject in subjects if subject.record)
    return document(
        "# Backup workers",
        listed(origin(f"{usable_cores()} cores", emulated=slow.emulated, command=command)),
        f"{CASE.name}, float32; each update uses {BATCH} examples. There is one parameter server; each process has "
        f"one thread.\nThe configurations took turns. Untimed steps at the start of each turn: {SETTLING}.\n"
        "All configurations with slow workers use the same delays, determined by seed, worker and step.",
        f"## Step\n\n{_steps(subjects)}",
        f"## Contributions of each worker in {len(slow.record)} steps\n\n{_shares(slow.record)}",
        "Counted: used in an update. Dropped: begun, but the step ended before the worker's contribution arrived.\n"
        "Not begun: the worker was still computing an earlier step.",
    )


def main(arguments: Sequence[str]) -> int:
    """Measure, print the document, and write it to the output file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks backup", description="Measure backup workers.")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each configuration")
    parser.add_argument("--steps", type=int, default=15, help="steps in a turn")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the tables to this file")
    given = parser.parse_args(arguments)
    publish(page(measure(given.rounds, given.steps), command_line(parser, given)), given.output)
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
        dropped = [each["examples"] for line in record for each in line["dropped"] if each["worker"] == worker]
        rest = len(record) - counted - len(dropped)
        rows.append((str(worker), str(counted), str(len(dropped)), str(sum(dropped)), str(rest)))
    return markdown(header, rows)
