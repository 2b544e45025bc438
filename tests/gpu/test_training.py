"""LeNet trained on a GPU to its usual accuracy, by one device and by two that share it; no network is needed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.data.digits import Digits
from runner.engine.graph.device import Cluster, local_cluster
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import scalar
from runner.engine.run.step_driver import bind
from runner.kernels.registry import Registry
from runner.models.lenet import LeNet
from runner.optimizers.sgd import Momentum
from runner.strategies.base import Strategy, Task
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from tests.gpu.gpus import Gpu, on_gpu

Array = NDArray[Any]

_SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abfgcd")
"""The segments of each digit on a seven-segment display."""

_PLACES = {
    "a": (slice(0, 1), slice(1, 5)),
    "b": (slice(0, 5), slice(4, 5)),
    "c": (slice(4, 9), slice(4, 5)),
    "d": (slice(8, 9), slice(1, 5)),
    "e": (slice(4, 9), slice(0, 1)),
    "f": (slice(0, 5), slice(0, 1)),
    "g": (slice(4, 5), slice(1, 5)),
}


@dataclass(frozen=True)
class Labelled:
    """Images (N, 1, H, W) float32 with a mean near zero and labels (N,) int64, for training and for the test."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array


def drawn(count: int = 4096, test: int = 1024, side: int = 16) -> Labelled:
    """Digits of a seven-segment display, each moved by up to three pixels, under noise; always the same."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, count + test)
    images = random.normal(0.0, 0.4, (count + test, 1, side, side)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        top, left = random.integers(0, 4, 2)
        for segment in _SEGMENTS[label]:
            rows, columns = _PLACES[segment]
            image[0, top : top + 9, left : left + 5][rows, columns] += 2.0
    return Labelled(images[:count], labels[:count], images[count:], labels[count:])


def digits() -> Labelled:
    """The 1,797 handwritten digits of scikit-learn with the test split of runner."""
    found = Digits().load()
    x, x_test = (found.normalisation.apply(s.images, np.dtype(np.float32)) - 0.3 for s in (found.train, found.test))
    return Labelled(x, found.train.labels, x_test, found.test.labels)


def mnist(path: Path) -> Labelled:
    """The 70,000 of MNIST, from an .npz file of bytes (N, 28, 28)."""
    with np.load(path) as file:
        x, x_test = ((file[name][:, None] / np.float32(255) - 0.13) / 0.31 for name in ("x_train", "x_test"))
        y, y_test = (file[name].astype(np.int64) for name in ("y_train", "y_test"))
    return Labelled(x.astype(np.float32), y, x_test.astype(np.float32), y_test)


def available(mnist_file: Path | None) -> list[str]:
    """Return the names of the available data sets."""
    return ["drawn", *(["digits"] if find_spec("sklearn") else []), *(["mnist"] if mnist_file else [])]


@dataclass(frozen=True)
class Shuffled:
    """An input source: batches of the examples in a new order in every epoch, and the test split in order."""

    data: Labelled
    batch: int
    test_batch: int

    def read(self, split: str, step: int, lo: int, hi: int) -> Mapping[str, Array]:
        """Return examples lo..hi-1 of a batch; a test batch beyond the end is padded with masked examples."""
        if split == "test":
            wanted = np.arange(step * self.test_batch, (step + 1) * self.test_batch)[lo:hi]
            count, x, y = len(self.data.y_test), self.data.x_test, self.data.y_test
        else:
            steps = len(self.data.y) // self.batch
            order = _order(len(self.data.y), step // steps)
            wanted = order[step % steps * self.batch :][: self.batch][lo:hi]
            count, x, y = len(order), self.data.x, self.data.y
        taken = np.minimum(wanted, count - 1)
        return {"x": x[taken], "y": y[taken], "index": wanted, "mask": (wanted < count).astype(np.float32)}


@cache
def _order(count: int, epoch: int) -> Array:
    return np.random.default_rng(epoch).permutation(count)


BATCH, TEST_BATCH = 32, 256

ACCURACY = {"drawn": 0.98, "digits": 0.95, "mnist": 0.985}
"""Share of the test split; on CPUs LeNet reaches 0.998 on the drawn digits and 0.969 on digits."""

EPOCHS = {"drawn": 1, "digits": 20, "mnist": 2}

STRATEGIES: dict[str, Strategy] = {"single": Single(), "sync_data": SyncData(workers=2)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize with every available data set."""
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", available(metafunc.config.getoption("--mnist", None)))


@pytest.fixture
def data(name: str, request: pytest.FixtureRequest) -> Labelled:
    """The images of a data set."""
    if name == "mnist":
        path: Path = request.config.getoption("--mnist")
        return mnist(path)
    return {"drawn": drawn, "digits": digits}[name]()


def accuracy(session: LocalSession, data: Labelled) -> float:
    """Return the share of the test split that is classified correctly."""
    batches = math.ceil(len(data.y_test) / TEST_BATCH)
    answers = [session.run("eval", step=batch, feeds={"step": scalar(0, "int64")}) for batch in range(batches)]
    return float(sum(float(each["correct"]) for each in answers)) / len(data.y_test)


def learned(strategy: str, name: str, data: Labelled, dtype: str, registry: Registry, cluster: Cluster) -> float:
    """Accuracy after some passes over the images."""
    task = Task(LeNet().network(10), Momentum(lr=0.01), data.x.shape[1:], dtype, 0, BATCH, TEST_BATCH)
    program = STRATEGIES[strategy].build(task)
    session = LocalSession(program, cluster, registry, Shuffled(data, BATCH, TEST_BATCH))
    session.run("init")
    step_driver = bind(program.step_driver, session)
    for step in range(EPOCHS[name] * (len(data.y) // BATCH)):
        loss = step_driver.update(step, scalar(0.01, "float32"))["loss"]
        assert np.isfinite(loss), f"step {step}"
    found = accuracy(session, data)
    session.close()
    return found


@pytest.mark.small
def test_cpus_learn_the_drawn_digits() -> None:
    """The required accuracy is possible."""
    assert learned("single", "drawn", drawn(), "float32", load_kernels(), local_cluster(1)) >= ACCURACY["drawn"]


@pytest.mark.gpu_only
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_lenet_learns(gpu: Gpu, name: str, data: Labelled, strategy: str, precision: str) -> None:
    dtype, tf32 = ("bfloat16" if precision == "bfloat16" else "float32"), precision == "tf32"
    cluster = on_gpu(STRATEGIES[strategy].workers, tf32=tf32)
    assert learned(strategy, name, data, dtype, gpu.registry(tf32=tf32), cluster) >= ACCURACY[name]
