"""Training with backup workers on a virtual clock, and what it must be equal to: ``single`` on the same shares."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.compile.program import InputSource, Program
from runner.engine.graph import ops
from runner.engine.graph.device import local_cluster, worker_device
from runner.engine.graph.graph import Graph
from runner.engine.run.interleaving import VirtualTime
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import Session, scalar
from runner.engine.run.step_driver import bind
from runner.kernels.registry import Registry
from runner.strategies.base import Task
from runner.strategies.clients import program
from runner.strategies.replica import Replica, ordered_sum, shares
from runner.strategies.sync_data import SyncData
from tests.strategies.networks import Examples
from tests.strategies.training import Weights

Array = NDArray[Any]
Line = Mapping[str, Any]


def backed(workers: int, backups: int, servers: int = 1, replay: str | None = None) -> SyncData:
    """A strategy with backup workers."""
    return SyncData(workers=workers, combine="parameter_server", servers=servers, backup_workers=backups, replay=replay)


def drawn_time(seed: int) -> VirtualTime:
    """A clock with a random duration for every part, of which a few are very long."""

    def seconds(client: str, device: str, step: int) -> float:
        rng = np.random.default_rng([seed, step, *f"{client} {device}".encode()])
        return float(rng.lognormal(0.0, 2.0 if client.startswith("share") else 0.1))

    return VirtualTime(seconds, lambda nbytes: 1e-3 * nbytes)


def rate_of(step: int, dtype: str) -> Array:
    """A falling learning rate."""
    return scalar(0.1 / (1 + step), dtype)


@dataclass
class Run:
    """A program with backup workers and its session."""

    program: Program
    session: Session
    source: InputSource
    dtype: str

    def __post_init__(self) -> None:
        self.step_driver = bind(self.program.step_driver, self.session)

    def train(self, steps: Iterable[int]) -> list[tuple[float, float]]:
        """Make updates; returns loss and accuracy of each."""
        fetched = [self.step_driver.update(step, rate_of(step, self.dtype)) for step in steps]
        return [(float(each["loss"]), float(each["accuracy"])) for each in fetched]

    def lines(self) -> Sequence[Line]:
        """The record so far."""
        return list(self.step_driver.decisions()["contributors"])

    def weights(self) -> Weights:
        """Every variable by unsharded name."""
        self.step_driver.synchronize()
        return self.session.run("save")


@contextmanager
def running(
    strategy: SyncData,
    task: Task,
    registry: Registry,
    clock: VirtualTime,
    source: Examples | None = None,
    *,
    initialised: bool = True,
) -> Iterator[Run]:
    """Open a program of a strategy. source: of other examples than usual."""
    made = strategy.build(task)
    source = source or Examples(strategy.examples_per_update(task.batch_size), task.example_shape, task.state_dtype)
    cluster = local_cluster(made.workers, made.servers)
    session = LocalSession(made, cluster, registry, source, interleaving=clock)
    try:
        if initialised:
            session.run("init")
        yield Run(made, session, source, task.state_dtype)
    finally:
        session.close()


def single_over(task: Task, contributors: Sequence[int], backups: int) -> Program:
    """A program on one device that trains on some shares of a step's examples, as microbatches."""
    workers = len(contributors)
    given_out = -(-task.batch_size * (workers + backups) // workers)
    cut = shares(given_out, workers + backups)
    held = sum(cut[k][1] - cut[k][0] for k in contributors)
    graph = Graph()
    replica = Replica(graph, task, device=worker_device(0))
    computed = [replica.compute_gradients(cut[k], f"train/share_{k}") for k in contributors]

    def total(parts: Sequence[Any]) -> Any:
        scale = ops.fill(graph, task.batch_size / held, (), task.state_dtype)
        summed = ordered_sum(graph, parts)
        return summed if held == task.batch_size else ops.mul(graph, summed, scale)

    with graph.device(replica.device), graph.absolute_scope("train/total"):
        gradients = [
            (variable, total([own.gradients[i][1] for own in computed]))
            for i, (variable, _) in enumerate(computed[0].gradients)
        ]
        updates = [
            type(each)(each.variable, total([own.state_updates[i].batch_value for own in computed]), each.decay)
            for i, each in enumerate(computed[0].state_updates)
        ]
        loss, accuracy = total([each.loss for each in computed]), total([each.accuracy for each in computed])
    targets = replica.apply(gradients, updates)
    return program(graph, [replica], loss=loss, accuracy=accuracy, targets=targets)


def expected_of(
    task: Task, lines: Sequence[Line], backups: int, registry: Registry, source: InputSource
) -> tuple[Weights, list[tuple[float, float]]]:
    """Weights and history of ``single`` over the recorded shares, with a program for each set of shares."""
    sessions: dict[tuple[int, ...], LocalSession] = {}
    weights: Weights | None = None
    history = []
    for line in lines:
        contributors = tuple(line["contributors"])
        if contributors not in sessions:
            made = single_over(task, contributors, backups)
            sessions[contributors] = LocalSession(made, local_cluster(1), registry, source)
        session = sessions[contributors]
        session.run("init") if weights is None else session.run("restore", feeds=dict(weights))
        feeds = {"step": scalar(line["step"], "int64"), "learning_rate": rate_of(line["step"], task.state_dtype)}
        fetched = session.run("train", step=line["step"], feeds=feeds)
        history.append((float(fetched["loss"]), float(fetched["accuracy"])))
        weights = session.run("save")
    assert weights is not None
    return weights, history
