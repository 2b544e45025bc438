"""``python -m benchmarks gpu``: see its ``--help``."""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cells import origin
from benchmarks.environments import ROOT, members
from benchmarks.gpu.deadline import Deadline
from benchmarks.gpu.measure import COMPARE_PLANS, COMPILED, MODES, QUICK, UNKNOWN, Settings, measure, measure_rates
from benchmarks.gpu.networks import GPU_CASES, PRECISIONS, prepare
from benchmarks.gpu.store import Measured, read_store
from benchmarks.gpu.table import page
from benchmarks.limit import Rates
from benchmarks.process import SubjectError
from runner.errors import RunnerError
from runner.records.summary import cpu_model

RESULTS = ROOT / "benchmarks" / "results"

LEAST_S = 40.0
"""Minimum remaining time, in seconds, for the start of a measurement."""

_QUERY = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")

_DESCRIPTION = """Measure training steps on a GPU against PyTorch on the same GPU, the most important networks first.
All networks are measured with the PyTorch modes that need no compilation, and then, if time remains, also with the
compiled modes. Missing results are reported as not run. The results of several runs of the command are collected in two
files named after the GPU: tables in Markdown, and numbers in JSON. Both are in benchmarks/results or in the folder of
--output."""


@dataclass(frozen=True)
class Options:
    """The requested measurements. output: folder for the results."""

    cases: tuple[str, ...]
    precisions: tuple[str, ...]
    modes: tuple[str, ...]
    settings: Settings
    seconds: float
    output: Path


class NoGpuError(Exception):
    """There is no GPU."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 1 if there is no GPU, if runner failed, or if nothing was measured."""
    options = parse(arguments)
    deadline = Deadline(options.seconds)
    try:
        facts = gpu_facts(options.settings.device)
    except NoGpuError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    stem = options.output / re.sub(r"[^a-z0-9]+", "-", facts["device"].lower()).strip("-")
    stem.parent.mkdir(parents=True, exist_ok=True)
    store = read_store(stem.with_suffix(".json"), facts)
    command = " ".join(["python -m benchmarks gpu", *arguments])
    failed = True
    for number, measured in enumerate(measurements(options, deadline)):
        failed = bool(measured.result.ours.failure) or (failed and number > 0)
        store.add(measured)
        store.write(stem.with_suffix(".json"))
        stem.with_suffix(".md").write_text(page(store, command))
    print(page(store, command))
    return 1 if failed else 0


def parse(arguments: Sequence[str]) -> Options:
    """Parse the command line. Exits with code 2 and a message if an argument is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=_DESCRIPTION)
    default = [name for name in GPU_CASES if name != "smoke"]
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE", default=[], help=f"some of: {', '.join(GPU_CASES)}")
    add("--precision", metavar="NAME,...", default=",".join(PRECISIONS), help="precisions, in the order of measurement")
    add("--modes", metavar="NAME,...", default=",".join(MODES), help="PyTorch modes, in the order of start, or none")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="use cpu to try the benchmark without a GPU")
    add("--rounds", type=int, default=Settings.rounds, help="turns of each implementation in each phase")
    add("--steps", type=int, default=Settings.turn, help="runs in a turn")
    add(COMPARE_PLANS, action="store_true", help="let runner time the plans of cuDNN and use the fastest")
    add("--seconds", type=float, default=500.0, help="time limit; no measurement is started shortly before it")
    add("--output", type=Path, metavar="FOLDER", default=RESULTS, help="folder of the result files")
    given = parser.parse_args(arguments)
    modes = () if given.modes == "none" else members(parser, "--modes", given.modes.split(","), MODES)
    return Options(
        members(parser, "CASE", given.cases or default, tuple(GPU_CASES)),
        members(parser, "--precision", given.precision.split(","), PRECISIONS),
        modes,
        Settings(given.device, given.rounds, given.steps, given.compare_plans),
        given.seconds,
        given.output,
    )


def gpu_facts(device: str) -> Mapping[str, str]:
    """Return facts about the first GPU. Raises NoGpuError without a GPU."""
    if device == "cpu":
        return {"device": cpu_model()}
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NoGpuError("no NVIDIA GPU: nvidia-smi was not found") from None
    if done.returncode or not done.stdout.strip():
        raise NoGpuError(f"no NVIDIA GPU: nvidia-smi reports {(done.stderr or done.stdout).strip() or 'nothing'}")
    name, driver, memory = (word.strip() for word in done.stdout.splitlines()[0].split(","))
    return {"device": name, "driver": driver, "memory": memory}


def passes(options: Options) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield case, precision and modes in order: first all cases without compilers, then all with compilers."""
    quick = tuple(mode for mode in options.modes if mode in QUICK)
    rounds = [quick] if quick or not options.modes else []
    rounds += [options.modes] if any(mode in COMPILED for mode in options.modes) else []
    for modes in rounds:
        for precision in options.precisions:
            for case in options.cases:
                yield case, precision, modes


def measurements(options: Options, deadline: Deadline) -> Iterator[Measured]:
    """Measure in the order of :func:`passes` until the time is up."""
    found = origin("")
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        root = Path(name)
        rates = _rates(options, root, deadline)
        for case, precision, modes in passes(options):
            if deadline.remaining_s() < LEAST_S:
                _say(f"{case}, {precision}, {', '.join(modes)}: not run, the time is up")
                continue
            _say(f"{case}, {precision}, {', '.join(modes)}: {deadline.remaining_s():.0f} s are left")
            try:
                folder = root / case
                if not folder.exists():
                    prepare(GPU_CASES[case], folder)
                result = measure(
                    GPU_CASES[case], precision, modes, folder, options.settings, rates[precision], deadline
                )
            except (RunnerError, SubjectError) as error:
                _say(f"{case}, {precision}: {error}")
                continue
            yield Measured(result, rates[precision], found["commit"], found["date"])


def _rates(options: Options, folder: Path, deadline: Deadline) -> Mapping[str, Rates]:
    """Measure the rates of the GPU; if the measurement fails, return unknown rates."""
    try:
        return measure_rates(options.settings, options.precisions, folder, deadline)
    except SubjectError as error:
        _say(str(error))
        return dict.fromkeys(options.precisions, UNKNOWN)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
