"""Convert a configuration to its problem: a folder with the network's description, initial values and a batch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from benchmarks.experiments import configuration, opened, timed_experiment
from benchmarks.network import forward_layers, random_batch
from benchmarks.problem import Problem
from runner.errors import ConfigError
from runner.optimizers.sgd import Momentum
from runner.training.build import workload_of
from runner.training.experiment import Experiment


def prepare(overrides: Sequence[str], folder: Path) -> Problem:
    """Write the problem of a classification with the momentum optimizer, and return it. Raises ConfigError.

    In every precision, the description and the initial values are those of the float32 network.
    """
    experiment = timed_experiment([*overrides, "precision=float32"])
    layers, trainable = forward_layers(workload_of(experiment.config, experiment.facts))
    problem = Problem(
        folder,
        layers,
        trainable,
        configuration(overrides).precision,
        experiment.threads_per_worker,
        experiment.learning_rate(0),
        experiment_momentum(experiment),
        tuple(overrides),
    )
    facts = experiment.facts
    x, y = random_batch(experiment.config.train.batch_size, facts.shape, facts.classes)
    problem.save(x, y, initial_values(experiment, problem))
    return problem


def initial_values(experiment: Experiment, problem: Problem) -> Mapping[str, NDArray[Any]]:
    """Return the experiment's initial values of the variables that the problem names."""
    with opened(experiment) as session:
        saved = session.run("save")
    return {name: saved[name] for name in (*problem.trainable, *problem.moving)}


def experiment_momentum(experiment: Experiment) -> float:
    """Return the momentum of the experiment's optimizer. Raises ConfigError for another optimizer."""
    optimizer = experiment.config.optimizer
    if not isinstance(optimizer, Momentum):
        raise ConfigError(f"optimizer={optimizer}: expected optimizer=momentum, which all libraries have")
    return float(optimizer.momentum)
