"""Framework-independent descriptions of networks, and batches for them. A configuration is not needed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.description import describe
from benchmarks.problem import Layer, Problem
from runner.engine.graph import Graph, NetworkBuilder, Variables, ops
from runner.errors import ConfigError
from runner.optimizers import Momentum
from runner.strategies import Workload

_SEED = 0


def forward_layers(workload: Workload) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """Return the network's layers in training, in float32, and the names of its trainable variables."""
    graph = Graph()
    variables = Variables(graph, seed=workload.seed)
    batch = workload.batch_size
    x = ops.placeholder(graph, (batch, *workload.fields["x"].shape), "float32", name="x")
    y, index = (ops.placeholder(graph, (batch,), "int64", name=name) for name in ("y", "index"))
    step = ops.placeholder(graph, (), "int64", name="step")
    net = NetworkBuilder(graph, variables, dtype="float32", seed=workload.seed, training=True, step=step, index=index)
    outputs = workload.network(net, {"x": x, "y": y, "index": index})
    layers = describe(graph, x, outputs.prediction, net.state_updates)
    return layers, tuple(variable.name for variable in variables.trainable)


def random_batch(batch: int, shape: Sequence[int], classes: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return normally distributed images (N, C, H, W) and labels (N,). Every call returns the same batch."""
    random = np.random.default_rng(_SEED)
    x = random.standard_normal((batch, *shape), np.float32)
    return x, random.integers(0, classes, batch)


def write_problem(
    folder: Path,
    workload: Workload,
    classes: int,
    saved: Mapping[str, NDArray[Any]],
    *,
    precision: str,
    threads: int,
    learning_rate: float,
    overrides: Sequence[str] = (),
) -> Problem:
    """Write the problem of a classification and return it. saved: initial values of the variables of the network.

    For the options, see :class:`~benchmarks.problem.Problem`. Raises ConfigError for another optimizer than momentum.
    """
    optimizer = workload.optimizer
    if not isinstance(optimizer, Momentum):
        raise ConfigError(f"optimizer={optimizer}: expected optimizer=momentum, which all libraries have")
    layers, trainable = forward_layers(workload)
    momentum = float(optimizer.momentum)
    problem = Problem(folder, layers, trainable, precision, threads, learning_rate, momentum, tuple(overrides))
    x, y = random_batch(workload.batch_size, workload.fields["x"].shape, classes)
    problem.save(x, y, {name: saved[name] for name in (*problem.trainable, *problem.moving)})
    return problem
