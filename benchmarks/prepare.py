"""Convert a case to its problem: a folder with the network's description, initial values and a batch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from benchmarks.cases import Case
from benchmarks.experiments import opened, timed_experiment
from benchmarks.network import forward_layers, random_batch
from benchmarks.problem import Problem
from runner.training.build import workload_of
from runner.training.experiment import Experiment


def prepare(case: Case, folder: Path, *, threads: int, precision: str) -> Problem:
    """Write the problem of a case and return it. Raises ConfigError for an unknown model.

    In every precision, the description and the initial values are those of the float32 network.
    """
    experiment = timed_experiment(case.overrides(threads=threads, precision="float32"))
    layers, trainable = forward_layers(workload_of(experiment.config, experiment.facts))
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


def initial_values(experiment: Experiment, problem: Problem) -> Mapping[str, NDArray[Any]]:
    """Return the experiment's initial values of the variables that the problem names."""
    with opened(experiment) as session:
        saved = session.run("save")
    return {name: saved[name] for name in (*problem.trainable, *problem.moving)}


def experiment_momentum(experiment: Experiment) -> float:
    """Return the momentum of the experiment's optimizer."""
    optimizer: Any = experiment.config.optimizer
    return float(optimizer.momentum)
