"""``python -m benchmarks recommend``: the first choice of ``runner recommend`` against the fastest strategy."""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cases import CASES
from benchmarks.cells import NOTHING, command_line, document, listed, markdown, milliseconds, origin, publish, ratio
from benchmarks.experiments import configuration
from benchmarks.process import SubjectError
from benchmarks.simulator import OVERLAPPING, described, timed
from benchmarks.simulator_configurations import NETWORKS, SLOWEST
from runner.commands.recommend import UPDATES, candidates
from runner.engine.simulate.profile import InstructionSignature
from runner.errors import RunnerError
from runner.system.machine import usable_cores
from runner.training.link_test import with_messages
from runner.training.profiles import profile_here, with_instructions, write_profile
from runner.training.simulation import hardware_of, simulate

MODELS: Mapping[str, tuple[str, int, tuple[str, ...]]] = {
    "mlp": ("mlp", 32, ()),
    "mlp, 2,048 units": ("mlp", 64, ("model.hidden=[2048,2048]",)),
    "lenet": ("lenet", 32, ()),
    "cifar_convnet": ("cifar_convnet", 32, ()),
    "cifar_alexnet": ("cifar_convnet", 32, ("model=cifar_alexnet",)),
    "resnet20": ("resnet20", 16, ()),
    "resnet110": ("resnet110", 8, ()),
    "alexnet": ("alexnet", 4, ()),
    "googlenet": ("googlenet", 4, ()),
    "resnet50": ("resnet50", 4, ()),
}
"""Name -> case, batch size and further overrides."""

WORKERS = 2
CONTENDING = 1.15
"""Candidates with at most this multiple of the shortest time are run again."""

CLOSE = 1.05

_METHOD = """\
Two workers train each model on two emulated networks. The candidates of `runner recommend` are simulated with a profile
of this machine that has their instructions, and all of them are run. Those that are at most 15 % slower than the
fastest, and the first choice, are run in further rounds, and their medians count. AlexNet is not run at 100 Mbit/s,
because the exchange of its 244 MB takes 20 s."""


@dataclass
class Tried:
    """A candidate and its times.

    simulated_s: of one example. seconds: of the batch, one number for each run. failure: why a run is missing, or "".
    """

    overrides: tuple[str, ...]
    simulated_s: float = float("inf")
    seconds: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def real_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def strategy(self) -> str:
        return self.overrides[0].partition("=")[2]

    @property
    def name(self) -> str:
        """The strategy and its variant, without the number of workers, for a table."""
        values = [each.partition("=")[2] for each in self.overrides if "workers=" not in each]
        return " ".join(values)


@dataclass
class Setting:
    """A model on an emulated network, and the candidates that can be used."""

    name: str
    overrides: tuple[str, ...]
    tried: list[Tried]

    @property
    def first(self) -> Tried:
        """The first choice of ``runner recommend``."""
        return min(self.tried, key=lambda each: each.simulated_s)

    @property
    def fastest(self) -> Tried:
        return min((each for each in self.tried if each.seconds), key=lambda each: each.real_s)

    def contenders(self) -> list[Tried]:
        """Return the candidates to run again."""
        ran = [each for each in self.tried if each.seconds]
        limit = CONTENDING * min((each.real_s for each in ran), default=0.0)
        return [each for each in ran if each is self.first or each.real_s <= limit]


def settings(models: Sequence[str], profile: Path) -> Iterator[Setting]:
    """Yield each model on each emulated network, with the candidates of ``runner recommend``."""
    for model in models:
        case, batch, more = MODELS[model]
        given = CASES[case].overrides(threads=1, parallelism=(), batch=batch, batches=4)
        for network, emulated in NETWORKS.items():
            if emulated and (case, network) != ("alexnet", SLOWEST):
                overrides = (*given, *more, "train.steps=1000000", "train.log_every=1000000", *emulated)
                hardware = hardware_of(configuration([*described(profile), *overrides]))
                found = dict.fromkeys(candidates(hardware, [WORKERS]))
                yield Setting(f"{model}, {network}", overrides, [Tried(each) for each in found])


def prepare(setting: Setting, profile: Path, measured: set[tuple[InstructionSignature, int]]) -> None:
    """Record the instructions of all candidates, simulate each, and keep those that can be used."""
    usable = []
    for each in setting.tried:
        try:
            overrides = [*setting.overrides, *each.overrides]
            recorded = with_instructions(profile_here(profile), configuration(overrides), measured)
            write_profile(profile, recorded)
            found = simulate(configuration([*described(profile), *overrides]), UPDATES)
        except RunnerError as error:
            print(f"{setting.name}, {each.name}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
            continue
        each.simulated_s = 1.0 / found.examples_per_s
        usable.append(each)
    setting.tried = usable


def measure(setting: Setting, tried: Sequence[Tried], seconds: float) -> None:
    """Run candidates once. A failure is kept in the candidate."""
    with tempfile.TemporaryDirectory(prefix="benchmark-recommend-") as folder:
        for each in tried:
            print(f"{setting.name}: {each.name}", file=sys.stderr, flush=True)
            overrides = [*setting.overrides, *each.overrides]
            try:
                overlap = each.strategy in OVERLAPPING
                each.seconds.append(timed(overrides, seconds, Path(folder), overlap=overlap))
            except SubjectError as error:
                each.failure = str(error)


def page(compared: Sequence[Setting], command: str) -> str:
    """Return the page. Settings in which no candidate could be run have no row."""
    rows, close = [], 0
    for setting in (each for each in compared if any(tried.seconds for tried in each.tried)):
        first, fastest = setting.first, setting.fastest
        found = first.real_s / fastest.real_s if first.seconds else None
        close += found is not None and found <= CLOSE
        times = [milliseconds(each.real_s) if each.seconds else NOTHING for each in (first, fastest)]
        names = [setting.name, str(len(setting.tried)), first.name, times[0], fastest.name, times[1]]
        rows.append([*names, ratio(found, 1.0)])
    header = ["setting", "candidates", "first choice", "ms per batch", "fastest", "ms per batch", "ratio"]
    summary = f"In {close} of {len(rows)} settings the first choice takes at most {CLOSE} times the shortest time."
    facts = listed(origin(f"{usable_cores()} cores", command=command))
    failed = [f"- {s.name}, {each.name}: {each.failure}" for s in compared for each in s.tried if each.failure]
    parts = ["## Failed\n\n" + "\n".join(failed)] if failed else []
    return document("# First choices of `runner recommend`", facts, _METHOD, summary, markdown(header, rows), *parts)


def main(arguments: Sequence[str]) -> int:
    """Record the profile, simulate and run the candidates; return 1 if one could be simulated and not run."""
    parser = argparse.ArgumentParser("python -m benchmarks recommend", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3, help="runs of the contenders")
    parser.add_argument("--seconds", type=float, default=1.0, help="timed seconds of each run")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the page to FILE")
    given = parser.parse_args(arguments)
    command = command_line(parser, given)
    with tempfile.TemporaryDirectory(prefix="benchmark-profile-") as folder:
        profile = Path(folder) / "profile.json"
        write_profile(profile, with_messages(profile_here(profile), Path(folder)))
        compared, measured = list[Setting](), set[tuple[InstructionSignature, int]]()
        for setting in settings(given.models, profile):
            prepare(setting, profile, measured)
            for number in range(given.rounds):
                measure(setting, setting.contenders() if number else setting.tried, given.seconds)
            compared.append(setting)
            if given.output is not None:  # a benchmark that is stopped later has a page of the settings so far
                publish(page(compared, command), given.output)
    if given.output is None:
        publish(page(compared, command), None)
    return int(any(each.failure for setting in compared for each in setting.tried))
