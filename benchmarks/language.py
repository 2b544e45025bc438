"""Training steps of the LSTM language model: ``python -m benchmarks language``; see its ``--help``.

As a process of its own, ``python -m benchmarks.language THREADS`` is runner's side of the comparison.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from itertools import count
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.alternate import alternate, load, started
from benchmarks.cells import NOTHING, command_line, document, listed, markdown, origin, publish, ratio, spread
from benchmarks.experiments import FixedBatch
from benchmarks.protocol import CLOCKS, WALL, Run, serve
from benchmarks.results import SubjectResult
from benchmarks.subjects import SubjectSpec
from runner.engine.graph import local_cluster
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import scalar
from runner.fields import BEGINS, Field
from runner.models import Lstm
from runner.optimizers import Sgd
from runner.strategies import Workload
from runner.strategies.single import Single
from runner.system.machine import usable_cores
from runner.tasks.language import Language

WORDS, UNITS, ROWS, STEPS = 10_000, 512, 20, 35
WARM_UP = 2
SIZES = tuple(map(str, (WORDS, UNITS, ROWS, STEPS)))
SUBJECTS = (
    SubjectSpec("runner", "", "benchmarks.language"),
    SubjectSpec("PyTorch", "torch", "benchmarks.peers.torch_language", SIZES),
    SubjectSpec("JAX", "jax", "benchmarks.peers.jax_language", SIZES),
    SubjectSpec("TensorFlow", "tensorflow", "benchmarks.peers.tensorflow_language", ("graph", *SIZES)),
    SubjectSpec("TensorFlow with XLA", "tensorflow", "benchmarks.peers.tensorflow_language", ("xla", *SIZES)),
)
"""The implementations; the number of threads is the last argument of each."""

_METHOD = f"""Median {{clock}} time of a training step in ms, with quartiles: LSTM-{UNITS}-{UNITS} over {WORDS:,} words
with the full softmax, {ROWS} rows of {STEPS} words, SGD and gradients clipped by their global norm, float32. Every
subject has {{threads}} thread(s) and as many cores; the turns of the subjects alternate. ratio: runner's median over
that of the subject. The first loss is that of random weights: about log({WORDS:,}) = 9.21."""


class Ours:
    """The training step of runner."""

    versions: Mapping[str, str] = {"numpy": version("numpy")}

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def load(self) -> None:
        names = tuple(map(str, range(WORDS)))
        fields = {name: Field((STEPS,), "int64", names) for name in ("x", "y")} | {BEGINS: Field((), "int64")}
        network = Language().network(Lstm(units=[UNITS, UNITS], embedding=UNITS), fields)
        registry = load_kernels()
        # The limit applies to the libraries that have been loaded, and lasts until the process ends.
        threadpool_limits(self._threads)
        program = Single().build(Workload(network, Sgd(clip_norm=5.0), fields, "float32", 0, ROWS, ROWS))
        x, y = np.random.default_rng(0).integers(0, WORDS, (2, ROWS, STEPS))
        batch = {"x": x, "y": y, BEGINS: np.zeros(ROWS, np.int64), "index": np.arange(ROWS)}
        source = FixedBatch({**batch, "mask": np.ones(ROWS, np.float32)})
        self._session = LocalSession(program, local_cluster(1), registry, source)
        self._session.run("init")

    def phase(self, name: str) -> Run:
        numbers = count()

        def run() -> float:
            step = next(numbers)
            feeds = {"step": scalar(step, "int64"), "learning_rate": scalar(1, "float32")}
            return float(self._session.run("train", step=step, feeds=feeds)["loss"])

        return run


def measure(subjects: Sequence[SubjectSpec], threads: int, rounds: int, turn: int, clock: str) -> list[SubjectResult]:
    """Time training steps of all subjects in alternating turns, by a clock."""
    with tempfile.TemporaryDirectory(prefix="benchmark-language-") as folder, ExitStack() as stack:
        asked = [replace(spec, arguments=(*spec.arguments, str(threads))) for spec in subjects]
        contestants = [started(spec, Path(folder), stack, threads=threads) for spec in asked]
        for contestant in contestants:
            load(contestant, "step")
            contestant.ask("run", phase="step", times=WARM_UP)
        alternate(contestants, "step", rounds=rounds, turn=turn, clock=clock)
    return [contestant.result for contestant in contestants]


def page(results: Sequence[SubjectResult], threads: int, command: str, clock: str) -> str:
    """Return the table and a description of the measurement."""
    medians = [statistics.median(times) if (times := each.seconds.get("step")) else None for each in results]
    rows = [
        (each.name, each.failure, NOTHING, NOTHING, NOTHING)
        if median is None
        else (
            f"{each.name}, {', '.join(map(' '.join, each.versions.items()))}",
            spread(each.seconds["step"]),
            f"{ROWS * STEPS / median:,.0f}",
            ratio(medians[0], median),
            f"{each.losses[0]:.2f}",
        )
        for each, median in zip(results, medians, strict=True)
    ]
    return document(
        "# Language model",
        listed(origin(f"{threads} of {usable_cores()} cores", command=command)),
        _METHOD.format(clock=clock, threads=threads),
        markdown(("subject", "step", "words/s", "ratio", "first loss"), rows),
    )


def main(arguments: Sequence[str]) -> int:
    """Measure, then print and write the document; return 1 if a subject failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks language",
        description="Compare training steps of the LSTM language model. First run "
        "`python -m benchmarks peers torch jax tensorflow`.",
    )
    parser.add_argument("--threads", type=int, default=usable_cores(), help="threads and cores of each subject")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each subject")
    parser.add_argument("--steps", type=int, default=6, help="steps in a turn")
    parser.add_argument("--clock", choices=CLOCKS, default=WALL, help="cpu: CPU time, for a machine with other work")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table to this file")
    given = parser.parse_args(arguments)
    results = measure(SUBJECTS, given.threads, given.rounds, given.steps, given.clock)
    publish(page(results, given.threads, command_line(parser, given), given.clock), given.output)
    return int(any(each.failure for each in results))


if __name__ == "__main__":
    serve(Ours(int(sys.argv[1])))
