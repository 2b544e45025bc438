"""Configurations of runner, prepared for measurement."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.network import write_problem
from benchmarks.problem import Problem
from benchmarks.timed_single import TimedSingle
from runner.config.configuration import fix_machine_values
from runner.config.hydra_app import compose
from runner.config.schema import Config
from runner.engine.compile.program import Client
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import Session, scalar
from runner.system.machine import usable_cores
from runner.training.build import build, workload_of
from runner.training.experiment import Experiment


def configuration(overrides: Sequence[str]) -> Config:
    """Return the validated configuration for some overrides, on the CPU like the peers. Raises ConfigError."""
    return fix_machine_values(compose([*overrides, "cluster.device=cpu"]).config(), usable_cores())


def timed_experiment(overrides: Sequence[str]) -> Experiment:
    """Return an experiment with strategy ``single`` whose program has the clients of :class:`TimedSingle`."""
    return build(dataclasses.replace(configuration(overrides), parallelism=TimedSingle()))


@dataclass(frozen=True)
class FixedBatch:
    """An input source with one prepared batch, so that no step waits for data."""

    fields: Mapping[str, NDArray[Any]]

    def read(self, split: str, step: int, lo: int, hi: int) -> Mapping[str, NDArray[Any]]:
        """Return the prepared batch for every request."""
        return self.fields


def fixed_batch(experiment: Experiment, x: NDArray[Any], y: NDArray[Any]) -> FixedBatch:
    """Return a source of these images and labels, in the dtypes of the training step."""
    program = experiment.program
    values = {"x": x, "y": y, "index": np.arange(len(y)), "mask": np.ones(len(y))}
    inputs = [slot for client in program.training for slot in client.inputs]
    slots = {slot.field: program.graph.spec(slot.tensor) for slot in inputs}
    return FixedBatch({name: np.ascontiguousarray(values[name], spec.dtype) for name, spec in slots.items()})


@contextmanager
def opened(experiment: Experiment, batch: FixedBatch | None = None) -> Iterator[Session]:
    """Open a session in this process, with the configuration's thread budget, and initialise the variables."""
    # Kernels are loaded first, because the thread budget applies only to libraries that are already loaded.
    registry = load_kernels()
    with (
        threadpool_limits(experiment.threads_per_worker),
        closing(LocalSession(experiment.program, experiment.cluster, registry, batch)) as session,
    ):
        session.run("init")
        yield session


def feeds(experiment: Experiment, client: Client, step: int) -> dict[str, NDArray[Any]]:
    """Return the scalar feeds of a training client, in the dtypes of their placeholders."""
    values = {"step": step, "learning_rate": experiment.learning_rate(step)}
    graph = experiment.program.graph
    return {name: scalar(values[name], graph.spec(tensors[0]).dtype) for name, tensors in client.feeds.items()}


def prepare(overrides: Sequence[str], folder: Path) -> Problem:
    """Write the problem of a classification with the momentum optimizer, and return it. Raises ConfigError.

    In every precision, the description and the initial values are those of the float32 network.
    """
    experiment = timed_experiment([*overrides, "precision=float32"])
    with opened(experiment) as session:
        saved = session.run("save")
    return write_problem(
        folder,
        workload_of(experiment.config, experiment.facts),
        experiment.facts.classes,
        saved,
        precision=configuration(overrides).precision,
        threads=experiment.threads_per_worker,
        learning_rate=experiment.learning_rate(0),
        overrides=overrides,
    )
