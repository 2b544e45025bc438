"""From a case to its problem: the network described, its initial values and a batch drawn, all put in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cases import Case
from benchmarks.description import describe
from benchmarks.experiments import opened, timed_experiment
from benchmarks.problem import Layer, Problem
from runner.engine import ops
from runner.engine.graph import Graph
from runner.engine.network import NetworkBuilder
from runner.engine.variables import Variables
from runner.training.experiment import Experiment

_SEED = 0


def prepare(case: Case, folder: Path, *, threads: int, precision: str) -> Problem:
    """Write the problem of a case and return it; raises ConfigError when runner does not know the model.

    Description and initial values are those of the float32 network, whatever the precision.
    """
    experiment = timed_experiment(case.overrides(threads=threads, precision="float32"))
    layers, trainable = forward_layers(experiment, case.batch)
    problem = Problem(
        folder,
        layers,
        trainable,
        precision,
        threads,
        case.learning_rate,
        experiment_momentum(experiment),
        case.overrides(threads=threads, precision=precision),
    )
    x, y = random_batch(case)
    problem.save(x, y, initial_values(experiment, problem))
    return problem


def forward_layers(experiment: Experiment, batch: int) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """The layers of the experiment's network in training, and the names of its trainable variables."""
    config: Any = experiment.config
    graph = Graph()
    variables = Variables(graph, seed=config.seed)
    x = ops.placeholder(graph, (batch, *experiment.facts.shape), "float32", name="x")
    y, index = (ops.placeholder(graph, (batch,), "int64", name=name) for name in ("y", "index"))
    step = ops.placeholder(graph, (), "int64", name="step")
    net = NetworkBuilder(graph, variables, dtype="float32", seed=config.seed, training=True, step=step, index=index)
    outputs = config.model.network(experiment.facts.classes)(net, {"x": x, "y": y, "index": index})
    layers = describe(graph, x, outputs.logits, net.state_updates)
    return layers, tuple(variable.name for variable in variables.trainable)


def initial_values(experiment: Experiment, problem: Problem) -> Mapping[str, NDArray[Any]]:
    """The values the experiment's variables begin with, for those the problem names."""
    with opened(experiment) as session:
        saved = session.run("save")
    return {name: saved[name] for name in (*problem.trainable, *problem.moving)}


def random_batch(case: Case) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Normal images (N, C, H, W) and labels (N,), always the same."""
    random = np.random.default_rng(_SEED)
    x = random.standard_normal((case.batch, *case.shape), np.float32)
    return x, random.integers(0, case.classes, case.batch)


def experiment_momentum(experiment: Experiment) -> float:
    """The momentum of the experiment's optimizer."""
    optimizer: Any = experiment.config.optimizer
    return float(optimizer.momentum)
