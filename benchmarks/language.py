"""Training steps of the LSTM language model in runner, PyTorch, JAX and TensorFlow on this machine.

``python -m benchmarks.language`` measures training steps of LSTM-512-512 over 10,000 words with the full softmax: 20
rows of 35 words, SGD and gradients clipped by their global norm, float32. Each side runs in its own process, in turns;
``make bench-peers`` installs the other frameworks.
``--clock cpu`` measures the CPU time of the process in place of wall time, for one thread on a busy machine.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.environments import ROOT, MissingEnvironmentError, python_of

WORDS, UNITS, ROWS, STEPS = 10_000, 512, 20, 35
UPDATES, WARM_UP = 12, 3
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
PEERS: Mapping[str, tuple[str, ...]] = {
    "PyTorch": ("torch", "torch_language.py"),
    "JAX": ("jax", "jax_language.py"),
    "TensorFlow": ("tensorflow", "tensorflow_language.py", "graph"),
    "TensorFlow, XLA": ("tensorflow", "tensorflow_language.py", "xla"),
}
"""Name -> environment, script and first argument of the script."""


def seconds_of_ours(threads: int, clock: str) -> list[float]:
    """Return the seconds of each training step of runner."""
    from threadpoolctl import threadpool_limits

    from runner.engine.graph.device import local_cluster
    from runner.engine.run.kernel_table import load_kernels
    from runner.engine.run.local_session import LocalSession
    from runner.engine.run.session import scalar
    from runner.fields import BEGINS, Field
    from runner.models import Lstm
    from runner.optimizers.sgd import Sgd
    from runner.strategies.base import Workload
    from runner.strategies.single import Single
    from runner.tasks.language import Language

    names = tuple(map(str, range(WORDS)))
    fields = {name: Field((STEPS,), "int64", names) for name in ("x", "y")} | {BEGINS: Field((), "int64")}
    network = Language().network(Lstm(units=[UNITS, UNITS], embedding=UNITS), fields)
    registry = load_kernels()
    program = Single().build(Workload(network, Sgd(clip_norm=5.0), fields, "float32", 0, ROWS, ROWS))
    with threadpool_limits(threads):
        session = LocalSession(program, local_cluster(1), registry, _Words())
        session.run("init")
        found = []
        for step in range(UPDATES):
            begun = CLOCKS[clock]()
            session.run(
                "train", step=step, feeds={"step": scalar(step, "int64"), "learning_rate": scalar(1, "float32")}
            )
            found.append(CLOCKS[clock]() - begun)
        session.close()
    return found


class _Words:
    """A source of one batch of random words."""

    def __init__(self) -> None:
        x, y = np.random.default_rng(0).integers(0, WORDS, (2, ROWS, STEPS))
        rest = {"begins": np.zeros(ROWS, np.int64), "index": np.arange(ROWS), "mask": np.ones(ROWS, np.float32)}
        self._batch = {"x": x, "y": y, **rest}

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, np.ndarray]:
        """Return rows lo..hi-1."""
        return {name: values[lo:hi] for name, values in self._batch.items()}


def command_of(peer: str, threads: int, clock: str) -> list[str]:
    """Return the command that prints the seconds of each step; raises MissingEnvironmentError without the framework."""
    environment, script, *variant = PEERS[peer]
    path = Path(__file__).parent / "peers" / script
    sizes = map(str, (WORDS, UNITS, ROWS, STEPS, UPDATES))
    return [str(python_of(environment)), str(path), *variant, str(threads), clock, *sizes]


def main() -> None:
    """Print the median step and the words per second of all sides, and the ratios of runner to the others."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.language", description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS), metavar="NAME", help=", ".join(PEERS))
    parser.add_argument("--ours", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    threads, clock = options.threads, options.clock
    if options.ours:
        print(*seconds_of_ours(threads, clock))
        return
    ours = [sys.executable, "-m", "benchmarks.language", "--ours", "--threads", str(threads), "--clock", clock]
    try:
        commands = {"runner": ours, **{peer: command_of(peer, threads, clock) for peer in options.peers}}
    except MissingEnvironmentError as error:
        parser.error(str(error))
    medians: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(options.turns):
        for name, command in commands.items():
            done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
            medians[name].append(statistics.median(map(float, done.stdout.split()[WARM_UP:])))
    best = {name: min(each) for name, each in medians.items()}
    for name, seconds in best.items():
        ratio = "" if name == "runner" else f", runner / {name}: {best['runner'] / seconds:.2f}"
        print(f"{name:15} {1e3 * seconds:8.1f} ms a step, {ROWS * STEPS / seconds:8,.0f} words/s{ratio}")


if __name__ == "__main__":
    main()
