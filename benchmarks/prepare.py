"""Convert a configuration to its problem: a folder with the network's description, initial values and a batch."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.experiments import configuration, opened, timed_experiment
from benchmarks.network import write_problem
from benchmarks.problem import Problem
from runner.training.build import workload_of


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
