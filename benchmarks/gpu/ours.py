"""Time runner on a GPU: ``python -m benchmarks.gpu.ours DEVICE PRECISION CASE [--compare-plans] FOLDER``.

DEVICE is "cuda", or "cpu" to try the benchmark; CASE is one of :data:`~benchmarks.gpu.networks.GPU_CASES`.
"""

import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

import numpy as np

from benchmarks.gpu.engine import Engine, engine_on
from benchmarks.gpu.measure import COMPARE_PLANS
from benchmarks.gpu.networks import GPU_CASES, workload_of
from benchmarks.gpu.resident import LOAD, resident_single
from benchmarks.problem import Problem, load_problem
from benchmarks.protocol import Run, serve
from benchmarks.timed_single import CLIENTS
from runner.engine.run.session import scalar
from runner.strategies import Workload


class OursOnGpu:
    """The program of a case in a session of this process. The batch is in variables on the device."""

    def __init__(self, engine: Engine, workload: Workload, problem: Problem, stack: ExitStack) -> None:
        self._engine, self._workload, self._problem, self._stack = engine, workload, problem, stack

    @property
    def versions(self) -> Mapping[str, str]:
        return self._engine.versions

    def load(self) -> None:
        """Open the session and load the problem's initial values."""
        self._program = resident_single(self._workload)
        self._session = self._stack.enter_context(closing(self._engine.session(self._program)))
        # The optimizer's slots are not in the problem, so they keep the values that "init" sets.
        self._session.run("init")
        problem = self._problem
        saved = self._session.run("save")
        given = {name: problem.variable(name) for name in (*problem.trainable, *problem.moving)}
        self._session.run("restore", feeds={**saved, **given})
        y = problem.y
        batch = {"x": problem.x, "y": y, "index": np.arange(len(y)), "mask": np.ones(len(y), np.float32)}
        self._session.run(LOAD, feeds=batch)

    def phase(self, name: str) -> Run:
        session, client = self._session, CLIENTS[name]
        graph, asked = self._program.graph, self._program.clients[client]
        values = {"step": 0, "learning_rate": self._problem.learning_rate}
        feeds = {key: scalar(values[key], graph.spec(tensors[0]).dtype) for key, tensors in asked.feeds.items()}
        steps = count()

        def run() -> float:
            return float(session.run(client, step=next(steps), feeds=feeds)["loss"])

        return run

    def memory_mib(self) -> float:
        """Return the GPU memory of a step or, without a GPU, the memory of the process."""
        return self._engine.memory_mib(self._session)


if __name__ == "__main__":
    device, precision, name, *options, folder = sys.argv[1:]
    with ExitStack() as exit_stack:
        made = engine_on(device, precision, compare_plans=COMPARE_PLANS in options)
        subject = OursOnGpu(made, workload_of(GPU_CASES[name], precision), load_problem(Path(folder)), exit_stack)
        serve(subject, subject.memory_mib)
