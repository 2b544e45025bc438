"""Training a small network under a strategy, in this process."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.compile.program import Client, InputSource, Program
from runner.engine.graph.device import Gpus, local_cluster
from runner.engine.run.interleaving import virtual_time
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import scalar
from runner.engine.run.step_driver import bind
from runner.kernels.registry import Registry
from runner.strategies.base import Strategy, Task
from tests.strategies.networks import Examples

Array = NDArray[Any]
Weights = Mapping[str, Array]


class Trainer:
    """A program in a session, and the calls of the training loop."""

    def __init__(self, program: Program, session: LocalSession, dtype: str) -> None:
        self.program = program
        self.session = session
        self.step_driver = bind(program.step_driver, session)
        self._dtype = dtype

    def train(self, steps: Iterable[int]) -> list[tuple[float, float]]:
        """Run steps with a falling learning rate; returns loss and accuracy of each."""
        fetched = [self.step_driver.update(step, scalar(0.1 / (1 + step), self._dtype)) for step in steps]
        return [(float(each["loss"]), float(each["accuracy"])) for each in fetched]

    def evaluate(self, batch: int = 0) -> Weights:
        """Score a batch of the test split."""
        return self.session.run("eval", step=batch, feeds={"step": scalar(0, "int64")})

    def weights(self) -> Weights:
        """Every variable by unsharded name."""
        self.step_driver.synchronize()
        return self.session.run("save")


@contextmanager
def opened(
    strategy: Strategy,
    task: Task,
    registry: Registry,
    *,
    compression: str = "none",
    source: InputSource | None = None,
    gpus: bool = False,
    **more: Client,
) -> Iterator[Trainer]:
    """A program of a strategy, not initialised.

    compression: of transfers. source: of examples, None for endless ones. gpus: whether all devices are on the
    first GPU. more: clients besides its own.
    """
    program = strategy.build(task)
    program = replace(program, clients={**program.clients, **more})
    source = source or Examples(task.batch_size, task.example_shape, task.state_dtype)
    workers, servers = program.workers, program.servers
    cluster = local_cluster(workers, servers, compression=compression, gpus=first_gpu(workers, servers, gpus))
    alone = program.one_process
    interleaving = None if alone is None or alone.clock is None else virtual_time(alone.clock)
    session = LocalSession(program, cluster, registry, source, interleaving=interleaving)
    try:
        yield Trainer(program, session, task.state_dtype)
    finally:
        session.close()


def first_gpu(workers: int, servers: int, gpus: bool = True) -> Gpus | None:
    """The first GPU for all devices, or no GPU for any."""
    return Gpus((0,) * workers, (0,) * servers) if gpus else None


def trained(
    strategy: Strategy, task: Task, registry: Registry, steps: int, *, gpus: bool = False
) -> tuple[Weights, list[Any]]:
    """Weights and history after some steps from the initial values."""
    with opened(strategy, task, registry, gpus=gpus) as trainer:
        trainer.session.run("init")
        history = trainer.train(range(steps))
        return trainer.weights(), history


def difference(a: Weights, b: Weights) -> float:
    """The largest difference of any weight."""
    assert list(a) == list(b)
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def expect_same_bits(a: Weights, b: Weights) -> None:
    """Require equal names, shapes, dtypes and bits."""
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name, strict=True)
