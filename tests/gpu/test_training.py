"""LeNet reaches its usual accuracy on one and on two logical devices of a GPU; no download is needed."""

import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from runner.data import Digits, Synthetic
from runner.data.dataset import Dataset, Normalisation, Split
from runner.data.pipeline import Pipeline
from runner.engine.graph import Cluster, local_cluster
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import scalar
from runner.engine.run.step_driver import bind
from runner.fields import labelled
from runner.kernels.registry import Registry
from runner.models import LeNet
from runner.optimizers import Momentum
from runner.strategies import Single, Strategy, SyncData, Workload
from runner.tasks.classification import classifier
from tests.gpu.gpus import Gpu, on_gpu


def mnist(path: Path) -> Dataset:
    """Return the 70,000 images of MNIST from an .npz file with uint8 images (N, 28, 28)."""
    with np.load(path) as file:
        parts = (
            Split({"x": file[f"x_{split}"][:, None], "y": file[f"y_{split}"].astype(np.int64)})
            for split in ("train", "test")
        )
        return Dataset("mnist", *parts, Normalisation(255.0, (0.13,), (0.31,)))


DATA: dict[str, Callable[[], Dataset]] = {
    "synthetic": Synthetic(shape=[1, 16, 16], classes=10, examples=4096, test_examples=1024).load,
    "digits": Digits().load,
}
"""Labelled images for training on a GPU machine without network access."""


def available(mnist_file: Path | None) -> list[str]:
    """Return the names of the available data sets."""
    return ["synthetic", *(["digits"] if find_spec("sklearn") else []), *(["mnist"] if mnist_file else [])]


BATCH, TEST_BATCH = 32, 256

ACCURACY = {"synthetic": 0.98, "digits": 0.95, "mnist": 0.985}
"""Required accuracy on the test split; on CPUs LeNet reaches 1.0 on the synthetic images and 0.972 on digits."""

EPOCHS = {"synthetic": 1, "digits": 20, "mnist": 2}

STRATEGIES: dict[str, Strategy] = {"single": Single(), "sync_data": SyncData(workers=2)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests with every available data set."""
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", available(metafunc.config.getoption("--mnist", None)))


@pytest.fixture
def data(name: str, request: pytest.FixtureRequest) -> Dataset:
    """Return the data set with this name."""
    return mnist(request.config.getoption("--mnist")) if name == "mnist" else DATA[name]()


def learned(strategy: str, data: Dataset, dtype: str, registry: Registry, cluster: Cluster) -> float:
    """Train LeNet; return the fraction of the test split that the trained network classifies correctly."""
    workload = Workload(
        classifier(LeNet(), 10), Momentum(lr=0.01), labelled(data.train["x"].shape[1:]), dtype, 0, BATCH, TEST_BATCH
    )
    program = STRATEGIES[strategy].build(workload)
    source = Pipeline(data, seed=0, batch_size=BATCH, eval_batch_size=TEST_BATCH, dtype="float32")
    session = LocalSession(program, cluster, registry, source)
    session.run("init")
    step_driver = bind(program.step_driver, session)
    for step in range(EPOCHS[data.name] * (len(data.train) // BATCH)):
        loss = step_driver.update(step, scalar(0.01, "float32"))["loss"]
        assert np.isfinite(loss), f"step {step}"
    batches = math.ceil(len(data.test) / TEST_BATCH)
    answers = [session.run("eval", step=batch, feeds={"step": scalar(0, "int64")}) for batch in range(batches)]
    session.close()
    return sum(float(each["accuracy"]) for each in answers) / len(data.test)


@pytest.mark.small
def test_cpus_learn_the_synthetic_images() -> None:
    """The accuracy that the GPU tests require is reached on CPUs, too."""
    found = learned("single", DATA["synthetic"](), "float32", load_kernels(), local_cluster(1))
    assert found >= ACCURACY["synthetic"]


@pytest.mark.gpu_only
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_lenet_learns(gpu: Gpu, name: str, data: Dataset, strategy: str, precision: str) -> None:
    dtype, tf32 = ("bfloat16" if precision == "bfloat16" else "float32"), precision == "tf32"
    cluster = on_gpu(STRATEGIES[strategy].workers, tf32=tf32)
    assert learned(strategy, data, dtype, gpu.registry(tf32=tf32), cluster) >= ACCURACY[name]
