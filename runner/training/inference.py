"""Scores and predictions of a network, trained by any strategy, on one device of this machine."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from runner.checkpoint import load
from runner.config.configuration import fix_machine_values
from runner.config.devices import FindGpus, found_gpus
from runner.config.schema import Adaptation, Config
from runner.data.dataset import Dataset, EncodedImage, Facts, Normalisation, Preprocessing, Split
from runner.data.pipeline import Pipeline
from runner.data.preprocessing import VIEWS, ImagePreprocessing
from runner.data.settings import DatasetSettings, limited_facts, load_limited
from runner.engine.compile.program import Client, InputSource, Program
from runner.engine.graph import GPU, Cluster, Graph, TensorSpec, local_cluster, state_dtype, worker_task
from runner.engine.graph.network import COUNTED
from runner.engine.run.kernel_table import kernels_for
from runner.engine.run.local_session import LocalSession
from runner.errors import CheckpointError, ConfigError
from runner.fields import Field
from runner.kernels.gpu.discovery import discover
from runner.kernels.gpu.driver import GpuFacts
from runner.strategies.base import Strategy, Workload
from runner.strategies.clients import program_of
from runner.strategies.replica import Replica
from runner.training.build import workload_of
from runner.training.devices import gpus_of, log_devices, require_kernels
from runner.training.evaluation import TEST, VALIDATION, Scores, evaluate, with_validation
from runner.training.experiment import Experiment
from runner.training.memory import require_gpu_memory

PREDICT = "predict"


@dataclass
class ForwardPasses(Strategy):
    """A strategy that trains nothing. It is not an option of ``parallelism``, so no configuration can choose it."""

    name: str = "forward_passes"

    def build(self, workload: Workload) -> Program:
        """Return a program for one device, whose only variables are the weights of the network.

        The program has the usual clients except "train", and also "validate" and "predict". The client "predict"
        fetches "prediction" (N, outputs) for an evaluation batch of N examples of split "test", and the weights of the
        examples, if the task returns any.
        """
        graph = Graph()
        replica = Replica(graph, workload, device=worker_task(0))
        # The averages of a checkpoint, if it has any, are loaded as the weights.
        outputs, batch = replica.evaluate((0, workload.eval_batch_size), averages=False)
        scoring = with_validation(program_of(graph, [replica], [], scored=[(outputs, batch)]))
        weights = {name: each for name, each in outputs.collected.items() if name == COUNTED}
        fetches = {"prediction": outputs.prediction, **weights}
        predict = Client(PREDICT, fetches, inputs=tuple(replica.eval_inputs), exact=True)
        return replace(scoring, clients={**scoring.clients, PREDICT: predict})


@dataclass(frozen=True)
class OneDevice:
    """A network and the device of this machine that computes it.

    config: the configuration of the run that trained the network, with the settings of this device. cluster:
    this device only. gpus: the GPUs of this machine. what, reason: the device and the reason for its choice, as text.
    """

    config: Config
    cluster: Cluster
    gpus: tuple[GpuFacts, ...]
    what: str
    reason: str


def one_device(config: Config, cores: int, find: FindGpus = discover) -> OneDevice:
    """Choose a GPU or the CPU by ``config.cluster``, as a training run does; log the device and the reason.

    cores: the number of cores of this machine. find: function that finds the GPUs. Raises ResourceError if the
    requested GPU is not available or lacks the precision.
    """
    here = fix_machine_values(replace(config, parallelism=ForwardPasses(), adapt=Adaptation()), cores, find)
    found = found_gpus(here.cluster, find)
    cluster = local_cluster(1, gpus=gpus_of(here.cluster, workers=1, servers=0))
    report = log_devices(here.cluster, cluster, found)
    (what,) = report.devices.values()
    return OneDevice(here, cluster, found.gpus, what, report.reason)


def weights_of(config: Config) -> Mapping[str, TensorSpec]:
    """Return unsharded name -> spec of each variable of a configuration's network, without optimizer slots."""
    return ForwardPasses().build(workload_of(config, config.data.facts())).variables


def score(
    device: OneDevice, checkpoint: Path, settings: DatasetSettings, normalised_as: Normalisation
) -> dict[str, Scores]:
    """Score a checkpoint of the network of ``device`` on the test split and any validation split of a dataset.

    settings: the dataset, whose fields must match those of training. normalised_as: the normalisation used
    in training. Raises CheckpointError if the checkpoint does not hold the network, ConfigError if the pixels are not
    in the units of training, DataError if data cannot be read, ResourceError if a GPU cannot hold a batch.
    """
    config: Any = device.config
    facts, size = limited_facts(settings), config.train.eval_batch_size
    pipeline = pipeline_as_trained(settings, normalised_as, config)
    examples = {TEST: facts.test_examples, VALIDATION: facts.val_examples}
    with closing(pipeline), _opened(device, checkpoint, pipeline) as session:
        return {
            split: evaluate(session, config.task, batches=-(-count // size), classes=facts.classes, split=split)
            for split, count in examples.items()
            if count
        }


def answers(
    device: OneDevice, checkpoint: Path, inputs: NDArray[Any], facts: Facts | None = None
) -> NDArray[np.float64]:
    """Return the task's answers (N, outputs), such as class probabilities, for normalised inputs or words (N, ...).

    The answers are computed with the weights of ``checkpoint``. facts: the facts of the training data; None for the
    facts of the configuration's dataset. Raises CheckpointError if the checkpoint does not hold the network,
    ResourceError if a GPU cannot hold a batch.
    """
    facts = facts or device.config.data.facts()
    config: Any = device.config
    size = min(len(inputs), config.train.eval_batch_size)
    config = replace(config, train=replace(config.train, eval_batch_size=size))
    own = state_dtype(config.precision)
    source = _InputArray(inputs.astype(facts.fields["x"].dtype or own), facts.fields, own)
    with _opened(replace(device, config=config), checkpoint, source, facts) as session:
        batches = range(-(-len(inputs) // size))
        predicted = [session.run(PREDICT, step=step)["prediction"] for step in batches]
    found: NDArray[np.float64] = config.task.answers(np.concatenate(predicted)[: len(inputs)].astype(np.float64))
    return found


def score_views(
    device: OneDevice, checkpoint: Path, settings: DatasetSettings, normalised_as: Normalisation
) -> dict[str, Scores]:
    """Score a classifier on the test split by the mean of the class probabilities of 10 views of each image.

    The method is that of Krizhevsky et al. 2012, section 4.1. Examples that the task ignores do not count. Raises
    ConfigError if the task predicts no classes, if the data are not encoded images with classes or if their
    preprocessing has no views, and the errors of :func:`score`.
    """
    config: Any = device.config
    facts, size = limited_facts(settings), config.train.eval_batch_size
    dataset = renormalised(settings, normalised_as, config.data.name)
    if not (isinstance(dataset.preprocessing, ImagePreprocessing) and facts.classes and config.task.ranked):
        fault = f"task={config.task.name} with data={settings.name}"
        raise ConfigError(f"{fault}: 10 views need classes and images that are decoded for each batch")
    dtype, threads = state_dtype(config.precision), settings.threads
    views = [
        Pipeline(replace(dataset, preprocessing=view), seed=config.seed, batch_size=size, dtype=dtype, threads=threads)
        for view in dataset.preprocessing.ten_views()
    ]
    hits: Counter[str] = Counter()
    with ExitStack() as ended:
        for each in views:
            ended.callback(each.close)
        session = ended.enter_context(_opened(device, checkpoint, _Views(views)))
        for batch in range(-(-facts.test_examples // size)):
            found = [session.run(PREDICT, step=batch * VIEWS + view) for view in range(VIEWS)]
            mean = np.mean([config.task.answers(each["prediction"].astype(np.float64)) for each in found], axis=0)
            scored = views[0].read(TEST, batch, 0, size)
            real = scored["mask"] * found[0].get(COUNTED, 1.0) > 0
            y = np.where(real, scored["y"], 0)  # an ignored label need not be a class
            answered = real & ~np.isnan(mean).any(axis=1)  # an image with NaN counts as wrong
            above = (mean > mean[np.arange(size), y][:, None]).sum(axis=1)[answered]
            hits.update(examples=int(real.sum()), accuracy=int((above < 1).sum()), top5_accuracy=int((above < 5).sum()))
    examples = hits.pop("examples")
    right = {name: count / examples if examples else math.nan for name, count in hits.items()}
    errors = {name.replace("accuracy", "error"): 1 - part for name, part in right.items()}
    return {TEST: Scores(right | errors, examples)}


class _Views:
    """An input source whose step 10 b + v is batch b in view v."""

    def __init__(self, views: Sequence[Pipeline]) -> None:
        self._views = views

    def read(self, split: str, step: int, lo: int, hi: int) -> Mapping[str, NDArray[Any]]:
        batch, view = divmod(step, len(self._views))
        return self._views[view].read(split, batch, lo, hi)


class _InputArray:
    """An input source over an array of inputs without targets; the last batch is padded with zeros."""

    def __init__(self, inputs: NDArray[Any], fields: Mapping[str, Field], floats: str) -> None:
        """floats: dtype of the field "mask" and of the fields that define no dtype."""
        self._inputs = inputs
        self._others = {name: (each.shape, each.dtype or floats) for name, each in fields.items() if name != "x"}
        self._floats = floats

    def read(self, split: str, step: int, lo: int, hi: int) -> Mapping[str, NDArray[Any]]:
        count = hi - lo
        index = step * count + np.arange(count, dtype=np.int64)
        real = index < len(self._inputs)
        x = np.zeros((count, *self._inputs.shape[1:]), self._inputs.dtype)
        x[real] = self._inputs[index[real]]
        others = {name: np.zeros((count, *shape), dtype) for name, (shape, dtype) in self._others.items()}
        return {"x": x, **others, "index": index, "mask": real.astype(self._floats)}


@contextmanager
def _opened(
    device: OneDevice, checkpoint: Path, source: InputSource, facts: Facts | None = None
) -> Iterator[LocalSession]:
    """Yield a session that holds the weights of a checkpoint."""
    config: Any = device.config
    facts = facts or config.data.facts()
    program = ForwardPasses().build(workload_of(config, facts))
    weights = weights_in(checkpoint, config, program.variables)
    with opened(device, program, source, facts) as session:
        session.run("restore", feeds=weights)
        yield session


@contextmanager
def opened(device: OneDevice, program: Program, source: InputSource, facts: Facts) -> Iterator[LocalSession]:
    """Yield a session of a program for one device; the variables have no values yet.

    Raises ResourceError if a GPU cannot hold a batch.
    """
    config: Any = device.config
    experiment = Experiment(
        config=config,
        facts=facts,
        program=program,
        cluster=device.cluster,
        total_steps=0,
        steps_per_epoch=0.0,
        threads_per_worker=config.cluster.threads_per_worker,
        emulation=None,
    )
    # Kernels are loaded first, because the thread limit applies only to libraries that are already loaded.
    registry = kernels_for(device.cluster.devices)
    if config.cluster.device_taken == GPU:
        require_kernels(experiment.program, device.cluster, registry)
        require_gpu_memory(experiment, device.gpus)
    with (
        threadpool_limits(experiment.threads_per_worker),
        closing(LocalSession(experiment.program, device.cluster, registry, source)) as session,
    ):
        yield session


def weights_in(path: Path, config: Any, specs: Mapping[str, TensorSpec]) -> dict[str, NDArray[Any]]:
    """Load the variables ``specs``, averaged if the run kept averages; raise CheckpointError if they do not fit."""
    stored = config.optimizer.evaluated(load(path).variables)
    wrong = [
        f"{name} of shape {spec.shape}, found {stored[name].shape if name in stored else 'nothing'}"
        for name, spec in specs.items()
        if name not in stored or stored[name].shape != spec.shape
    ]
    if wrong:
        raise CheckpointError(f"{path} does not fit the configuration of the run: expected {wrong[0]}")
    return {name: np.asarray(stored[name], dtype=spec.dtype, order="C") for name, spec in specs.items()}


def renormalised(settings: DatasetSettings, known: Normalisation, trained_on: str) -> Dataset:
    """Load a dataset within its limits, normalised by its own pixel range and by the mean and std of training.

    Raises ConfigError if only this dataset or only the training dataset has a pixel range, because the units then
    differ.
    """
    dataset = load_limited(settings)
    own = dataset.normalisation
    if own.bounded != known.bounded:
        raise ConfigError(
            f"data={settings.name}: stored pixels are divided by {own.scale:g}, those of {trained_on}, on which the "
            f"network was trained, by {known.scale:g}: convert the pixels of one dataset to the units of the other"
        )
    return replace(dataset, normalisation=replace(known, scale=own.scale))


class _AsEvaluated(Preprocessing):
    """A preprocessing that does not distort images: train images are prepared like those of an evaluation."""

    def __init__(self, given: Preprocessing) -> None:
        self._given = given

    @property
    def shape(self) -> tuple[int, int, int]:
        return self._given.shape

    @property
    def draws(self) -> int:
        return self._given.draws

    def train(self, image: EncodedImage, draws: NDArray[np.float64]) -> NDArray[Any]:
        return self.evaluate(image)

    def evaluate(self, image: EncodedImage) -> NDArray[Any]:
        return self._given.evaluate(image)


def pipeline_as_trained(settings: DatasetSettings, normalised_as: Normalisation, config: Any) -> Pipeline:
    """Return batches of a dataset, also of its train split, as a network is evaluated; see :func:`renormalised`.

    Train batches mix the domains of the dataset, so that an epoch reads each example once. normalised_as: the
    normalisation used in training.
    """
    dataset = renormalised(settings, normalised_as, config.data.name)
    if isinstance(dataset.train, Split):
        dataset = replace(dataset, train=replace(dataset.train, domain_numbers=None))
    if dataset.preprocessing is not None:
        dataset = replace(dataset, preprocessing=_AsEvaluated(dataset.preprocessing))
    return Pipeline(
        dataset,
        seed=config.seed,
        batch_size=config.train.batch_size,
        eval_batch_size=config.train.eval_batch_size,
        dtype=state_dtype(config.precision),
        val_fraction=settings.val_fraction,
        threads=settings.threads,
    )
