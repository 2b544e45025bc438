"""Forward passes of a trained network on one device of this process, whatever strategy trained it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from runner.checkpoint import load
from runner.config.schema import Config
from runner.data import limits
from runner.data.dataset import Dataset, Normalisation
from runner.data.pipeline import Pipeline
from runner.data.settings import DatasetSettings
from runner.engine.device import local_cluster, worker_task
from runner.engine.graph import Graph
from runner.engine.inputs import InputSource
from runner.engine.kernel_table import load_kernels
from runner.engine.local_session import LocalSession
from runner.engine.program import Client, Program
from runner.engine.tensor import TensorSpec, state_dtype
from runner.errors import CheckpointError, ConfigError
from runner.processor import require_precision
from runner.strategies.base import Replica, Task
from runner.strategies.clients import program_of
from runner.training.build import task_of
from runner.training.evaluation import TEST, VALIDATION, Scores, evaluate, with_validation

PREDICT = "predict"


def forward_program(task: Task) -> Program:
    """Return a program of one device that trains nothing.

    Its variables are the weights alone. Beside the standing clients there is "validate", and "predict", which fetches
    "logits" (N, C) for a batch of split "test", N being the size of an evaluation batch.
    """
    graph = Graph()
    replica = Replica(graph, task, device=worker_task(0))
    outputs, batch = replica.evaluate((0, task.eval_batch_size))
    made = with_validation(program_of(graph, [replica], [], scored=[(outputs, batch)]))
    predict = Client(PREDICT, fetches={"logits": outputs.logits}, inputs=tuple(replica.eval_inputs), exact=True)
    return replace(made, clients={**made.clients, PREDICT: predict})


def weights_of(config: Config) -> Mapping[str, TensorSpec]:
    """Return what the network of a configuration holds, by unsharded name: without any slots of its optimizer."""
    return forward_program(_task_of(config)).variables


def score(
    config: Config, checkpoint: Path, settings: DatasetSettings, normalised_as: Normalisation, threads: int
) -> dict[str, Scores]:
    """Score a checkpoint of ``config`` on the test split of a dataset, and on its validation split if it has one.

    settings: of the dataset, with images and classes like those of ``config``. normalised_as: as the data that the
    network was trained on: its inputs become what they were in training. threads: of kernels. Raises CheckpointError
    where the checkpoint does not hold the network, ConfigError where stored pixels of the datasets are in different
    units, DataError where data cannot be read.
    """
    facts, size = limits.facts_of(settings), config.train.eval_batch_size
    pipeline = Pipeline(
        _normalised_as(settings, normalised_as, config.data.name),
        seed=config.seed,
        batch_size=size,
        dtype=state_dtype(config.precision),
        val_fraction=settings.val_fraction,
    )
    examples = {TEST: facts.test_examples, VALIDATION: facts.val_examples}
    with _opened(config, checkpoint, pipeline, threads) as session:
        return {
            split: evaluate(session, batches=-(-count // size), classes=facts.classes, split=split)
            for split, count in examples.items()
            if count
        }


def probabilities(config: Config, checkpoint: Path, inputs: NDArray[Any], threads: int) -> NDArray[np.float64]:
    """Return (N, C) probabilities of the classes for inputs (N, C', H, W), normalised, of a checkpoint of ``config``.

    Of a network with a softmax they add up to 1; with logistic units each stands for itself. threads: of kernels.
    Raises CheckpointError where the checkpoint does not hold the network.
    """
    size = min(len(inputs), config.train.eval_batch_size)
    config = replace(config, train=replace(config.train, eval_batch_size=size))
    source = _Given(inputs.astype(state_dtype(config.precision)))
    with _opened(config, checkpoint, source, threads) as session:
        answers = [session.run(PREDICT, step=step)["logits"].copy() for step in range(-(-len(inputs) // size))]
    logits = np.concatenate(answers)[: len(inputs)].astype(np.float64)
    if config.model.loss == "logistic":
        return np.asarray(1.0 / (1.0 + np.exp(-logits)))
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


class _Given:
    """An input source over inputs that are there already, without labels; the last batch is filled up with zeros."""

    def __init__(self, inputs: NDArray[Any]) -> None:
        self._inputs = inputs

    def read(self, split: str, step: int, lo: int, hi: int) -> Mapping[str, NDArray[Any]]:
        """Return a batch of hi - lo inputs; every batch is read whole."""
        count = hi - lo
        index = step * count + np.arange(count, dtype=np.int64)
        real = index < len(self._inputs)
        x = np.zeros((count, *self._inputs.shape[1:]), self._inputs.dtype)
        x[real] = self._inputs[index[real]]
        return {"x": x, "y": np.zeros(count, np.int64), "index": index, "mask": real.astype(x.dtype)}


@contextmanager
def _opened(config: Config, checkpoint: Path, source: InputSource, threads: int) -> Iterator[LocalSession]:
    """A session that holds the weights of a checkpoint."""
    require_precision(config.precision)
    program = forward_program(_task_of(config))
    weights = _weights(checkpoint, program.variables)
    # Before the budget of threads is set: it holds for libraries that are loaded.
    registry = load_kernels()
    with threadpool_limits(threads):
        session = LocalSession(program, local_cluster(1), registry, source)
        try:
            session.run("restore", feeds=weights)
            yield session
        finally:
            session.close()


def _task_of(config: Config) -> Task:
    return task_of(config, config.data.facts())


def _weights(path: Path, specs: Mapping[str, TensorSpec]) -> dict[str, NDArray[Any]]:
    """Load the weights of a network; what else the checkpoint holds is for training."""
    held = load(path).variables
    wrong = [
        f"{name} of shape {spec.shape}, found {held[name].shape if name in held else 'nothing'}"
        for name, spec in specs.items()
        if name not in held or held[name].shape != spec.shape
    ]
    if wrong:
        raise CheckpointError(f"{path} does not hold the network of its run's configuration: expected {wrong[0]}")
    return {name: np.asarray(held[name], dtype=spec.dtype, order="C") for name, spec in specs.items()}


def _normalised_as(settings: DatasetSettings, known: Normalisation, trained_on: str) -> Dataset:
    """Load a dataset within its limits, to be normalised as another was: as fractions of the range of its pixels.

    Raises ConfigError where only one of the two has pixels of a range: those of the other are numbers of any unit.
    """
    dataset = limits.load(settings)
    own = dataset.normalisation
    if own.bounded != known.bounded:
        raise ConfigError(
            f"data={settings.name}: stored pixels are divided by {own.scale:g}, those of {trained_on}, on which the "
            f"network was trained, by {known.scale:g}: they are in different units; convert one of them"
        )
    return replace(dataset, normalisation=replace(known, scale=own.scale))
