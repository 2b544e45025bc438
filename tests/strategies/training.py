"""Training a small network under a strategy, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.device import Cards, local_cluster
from runner.engine.inputs import InputSource
from runner.engine.local_session import LocalSession
from runner.engine.program import Client, Program
from runner.engine.session import scalar
from runner.kernels.registry import Registry
from runner.strategies.base import Strategy, Task
from tests.strategies.networks import Examples

Array = NDArray[Any]
Weights = Mapping[str, Array]


class Trainer:
    """A program in a session: what the training loop does with one."""

    def __init__(self, program: Program, session: LocalSession, dtype: str) -> None:
        self.program = program
        self.session = session
        self.conductor = program.conduct(session)
        self._dtype = dtype

    def train(self, steps: Iterable[int]) -> list[tuple[float, float]]:
        """Run steps with a falling learning rate; returns loss and accuracy of each."""
        fetched = []
        for step in steps:
            rate = scalar(0.1 / (1 + step), self._dtype)
            fetched.append(self.conductor.update(step, {"step": scalar(step, "int64"), "learning_rate": rate}))
        return [(float(each["loss"]), float(each["accuracy"])) for each in fetched]

    def evaluate(self, batch: int = 0) -> Weights:
        """Score a batch of the test split."""
        return self.session.run("eval", step=batch, feeds={"step": scalar(0, "int64")})

    def weights(self) -> Weights:
        """Every variable by unsharded name."""
        self.conductor.settle()
        return self.session.run("save")


@contextmanager
def opened(
    strategy: Strategy,
    task: Task,
    registry: Registry,
    *,
    compression: str = "none",
    source: InputSource | None = None,
    cards: bool = False,
    **more: Client,
) -> Iterator[Trainer]:
    """A program of a strategy, not initialised.

    compression: of transfers. source: of its examples, if not the endless ones. cards: whether all devices are on the
    first card. more: clients besides its own.
    """
    program = strategy.build(task)
    program = replace(program, clients={**program.clients, **more})
    source = source or Examples(task.batch_size, task.example_shape, task.state_dtype)
    workers, servers = program.workers, program.servers
    cluster = local_cluster(workers, servers, compression=compression, cards=first_card(workers, servers, cards))
    wish = program.one_process
    interleaving = None if wish is None or wish.interleaving is None else wish.interleaving()
    session = LocalSession(program, cluster, registry, source, interleaving=interleaving)
    try:
        yield Trainer(program, session, task.state_dtype)
    finally:
        session.close()


def first_card(workers: int, servers: int, cards: bool = True) -> Cards | None:
    """The first card for all devices, or no card for any."""
    return Cards((0,) * workers, (0,) * servers) if cards else None


def trained(
    strategy: Strategy, task: Task, registry: Registry, steps: int, *, cards: bool = False
) -> tuple[Weights, list[Any]]:
    """Weights and history after some steps from the initial values."""
    with opened(strategy, task, registry, cards=cards) as trainer:
        trainer.session.run("init")
        history = trainer.train(range(steps))
        return trainer.weights(), history


def difference(a: Weights, b: Weights) -> float:
    """The largest difference of any weight."""
    assert list(a) == list(b)
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def expect_same_bits(a: Weights, b: Weights) -> None:
    """Require equal names, shapes, dtypes and values, each to the last bit."""
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name, strict=True)
