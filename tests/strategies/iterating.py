"""Iterations of L-BFGS under a strategy, in this process."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.engine.compile.program import Program
from runner.engine.graph.device import local_cluster
from runner.engine.run.interleaving import Interleaving, VirtualTime
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import scalar
from runner.engine.run.step_driver import bind
from runner.kernels.registry import Registry
from runner.strategies.base import Strategy, Task
from tests.strategies.networks import Examples
from tests.strategies.training import Weights, first_gpu

COMMAND_S, WIRE_S = 0.01, 0.1


@dataclass
class Course:
    """The results of a run. told: loss, accuracy and objective of each iteration. sent: bytes by device."""

    weights: Weights
    told: list[tuple[float, float, float]]
    metrics: list[Mapping[str, float]]
    record: Mapping[str, Any]
    sent: list[int]
    program: Program = field(repr=False)

    @property
    def evaluations(self) -> int:
        """Portions of a batch."""
        return int(sum(each["train/evaluations"] for each in self.metrics))

    @property
    def duplicated(self) -> int:
        """Number of portions that were computed again."""
        return sum(each["duplicated"] for each in self.record["evaluations"])


def speeds(*seconds: float) -> VirtualTime:
    """A clock with the seconds of a portion for each worker; commands and fetches are fast."""

    def part_s(client: str, device: str, step: int) -> float:
        return seconds[int(client.split("_")[1])] if client.startswith("compute") else COMMAND_S

    return VirtualTime(part_s, lambda nbytes: WIRE_S)


def drawn_speeds(seed: int) -> VirtualTime:
    """Portions and commands whose seconds are drawn with heavy tails."""
    generator = np.random.default_rng(seed)

    def part_s(client: str, device: str, step: int) -> float:
        return float(generator.lognormal(sigma=1.5)) * (1.0 if client.startswith("compute") else 0.05)

    return VirtualTime(part_s, lambda nbytes: float(generator.lognormal(sigma=1.5)))


@contextmanager
def session_of(
    strategy: Strategy,
    task: Task,
    registry: Registry,
    interleaving: Interleaving | None = None,
    *,
    gpus: bool = False,
) -> Iterator[tuple[Program, LocalSession]]:
    """A program and a session of it, not initialised. gpus: whether all devices are on the first GPU."""
    program = strategy.build(task)
    source = Examples(task.batch_size, task.example_shape, task.state_dtype)
    workers, servers = program.workers, program.servers
    cluster = local_cluster(workers, servers, gpus=first_gpu(workers, servers, gpus))
    session = LocalSession(program, cluster, registry, source, interleaving=interleaving)
    try:
        yield program, session
    finally:
        session.close()


def iterated(
    strategy: Strategy,
    task: Task,
    registry: Registry,
    steps: Iterable[int],
    *,
    interleaving: Interleaving | None = None,
    saved: Weights | None = None,
    gpus: bool = False,
) -> Course:
    """Make iterations from the initial values, or from those saved. gpus: as of :func:`session_of`."""
    with session_of(strategy, task, registry, interleaving, gpus=gpus) as (program, session):
        session.run("init") if saved is None else session.run("restore", feeds=saved)
        step_driver = bind(program.step_driver, session)
        told, metrics = [], []
        for step in steps:
            answer = step_driver.update(step, scalar(1.0, task.state_dtype))
            metrics.append(step_driver.metrics())
            told.append((float(answer["loss"]), float(answer["accuracy"]), metrics[-1]["train/objective"]))
        step_driver.synchronize()
        # Count before the variables are read, because that sends bytes too.
        sent = session.sent_bytes()
        return Course(session.run("save"), told, metrics, step_driver.decisions(), sent, program)
