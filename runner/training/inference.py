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
from runner.data.dataset import Dataset, Normalisation
from runner.data.pipeline import Pipeline
from runner.data.settings import DatasetSettings, limited_facts, load_limited
from runner.engine.compile.input_slots import InputSource
from runner.engine.graph.device import GPU
from runner.engine.graph.tensor import TensorSpec, state_dtype
from runner.engine.run.kernel_table import kernels_for
from runner.engine.run.local_session import LocalSession
from runner.errors import CheckpointError, ConfigError
from runner.strategies.base import Task
from runner.training.build import task_of
from runner.training.devices import require_kernels
from runner.training.evaluation import TEST, VALIDATION, Scores, evaluate
from runner.training.experiment import Experiment
from runner.training.gpu_memory import require_gpu_memory
from runner.training.inference_device import PREDICT, ForwardPasses, OneDevice


def weights_of(config: Config) -> Mapping[str, TensorSpec]:
    """Return what the network of a configuration holds, by unsharded name: without any slots of its optimizer."""
    return ForwardPasses().build(_task_of(config)).variables


def score(
    device: OneDevice, checkpoint: Path, settings: DatasetSettings, normalised_as: Normalisation
) -> dict[str, Scores]:
    """Score a checkpoint of the device's network on the test split of a dataset, and on its validation split if any.

    settings: of the dataset, with images and classes like those that the network was trained on. normalised_as: as
    these: its inputs become what they were in training. Raises CheckpointError where the checkpoint does not hold the
    network, ConfigError where stored pixels of the datasets are in different units, DataError where data cannot be
    read, ResourceError where a GPU cannot hold an evaluation batch.
    """
    config: Any = device.config
    facts, size = limited_facts(settings), config.train.eval_batch_size
    pipeline = Pipeline(
        _normalised_as(settings, normalised_as, config.data.name),
        seed=config.seed,
        batch_size=size,
        dtype=state_dtype(config.precision),
        val_fraction=settings.val_fraction,
    )
    examples = {TEST: facts.test_examples, VALIDATION: facts.val_examples}
    with _opened(device, checkpoint, pipeline) as session:
        return {
            split: evaluate(session, batches=-(-count // size), classes=facts.classes, split=split)
            for split, count in examples.items()
            if count
        }


def probabilities(device: OneDevice, checkpoint: Path, inputs: NDArray[Any]) -> NDArray[np.float64]:
    """Return (N, C) probabilities of the classes for inputs (N, C', H, W), normalised, of a checkpoint of the network.

    Of a network with a softmax they add up to 1; with logistic units each stands for itself. Raises CheckpointError
    where the checkpoint does not hold the network, ResourceError where a GPU cannot hold a batch.
    """
    config: Any = device.config
    size = min(len(inputs), config.train.eval_batch_size)
    config = replace(config, train=replace(config.train, eval_batch_size=size))
    source = _Given(inputs.astype(state_dtype(config.precision)))
    with _opened(replace(device, config=config), checkpoint, source) as session:
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
def _opened(device: OneDevice, checkpoint: Path, source: InputSource) -> Iterator[LocalSession]:
    """A session that holds the weights of a checkpoint."""
    experiment = _wired(device)
    weights = _weights(checkpoint, experiment.program.variables)
    # Before the budget of threads is set: it holds for libraries that are loaded.
    registry = kernels_for(device.cluster.devices)
    if device.config.cluster.device_taken == GPU:
        require_kernels(experiment.program, device.cluster, registry)
        require_gpu_memory(experiment, device.gpus)
    with threadpool_limits(experiment.threads_per_worker):
        session = LocalSession(experiment.program, device.cluster, registry, source)
        try:
            session.run("restore", feeds=weights)
            yield session
        finally:
            session.close()


def _wired(device: OneDevice) -> Experiment:
    """The forward passes of a network as an experiment in which nothing is trained."""
    config: Any = device.config
    return Experiment(
        config=config,
        facts=config.data.facts(),
        program=ForwardPasses().build(_task_of(config)),
        cluster=device.cluster,
        total_steps=0,
        steps_per_epoch=0.0,
        threads_per_worker=config.cluster.threads_per_worker,
        emulation=None,
    )


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
    dataset = load_limited(settings)
    own = dataset.normalisation
    if own.bounded != known.bounded:
        raise ConfigError(
            f"data={settings.name}: stored pixels are divided by {own.scale:g}, those of {trained_on}, on which the "
            f"network was trained, by {known.scale:g}: they are in different units; convert one of them"
        )
    return replace(dataset, normalisation=replace(known, scale=own.scale))
