"""Whole networks: the losses of the first ten steps on a GPU equal those on CPUs up to float32 rounding.

``python -m tests.gpu.test_losses`` computes the float32 losses on CPUs and stores them in ``losses.json``, because a
GPU machine without the libraries of the fast CPU kernels would need minutes for these steps. The suite compares the
file with newly computed losses, except those of AlexNet.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.session import scalar
from runner.fields import labelled
from runner.kernels.registry import Registry
from runner.models import AlexNet, LeNet, Model, ResNetCifar
from runner.optimizers import Momentum
from runner.strategies import Single, Workload
from runner.tasks.classification import classifier
from tests.gpu.gpus import Gpu
from tests.strategies.networks import CLASSES, TEST_BATCH, Examples
from tests.strategies.training import begun

STEPS = 10
FILE = Path(__file__).with_name("losses.json")


@dataclass(frozen=True)
class Network:
    """A network that is trained on one batch. shape: the shape of one image."""

    model: Model
    shape: tuple[int, int, int]
    batch: int
    rate: float


NETWORKS: Mapping[str, Network] = {
    "lenet": Network(LeNet(), (1, 28, 28), 16, 0.01),
    "resnet20": Network(ResNetCifar(depth=20), (3, 32, 32), 8, 0.01),
    "alexnet": Network(AlexNet(dropout=0.0), (3, 224, 224), 4, 0.001),
}
"""AlexNet has no dropout, because the noise of dropout would dominate ten steps."""


class OneBatch(Examples):
    """A source with the same examples in every step, so that the loss falls and a wrong update is visible."""

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, NDArray[Any]]:
        """Return the examples of the first step."""
        return super().read(split, 0, lo, hi)


def losses(name: str, dtype: str, registry: Registry, *, gpus: bool = False) -> list[float]:
    """Return the losses of the first steps under ``single``; gradient clipping is active."""
    network = NETWORKS[name]
    optimizer = Momentum(lr=network.rate, clip_norm=1.0)
    forward = classifier(network.model, CLASSES)
    workload = Workload(forward, optimizer, labelled(network.shape), dtype, 7, network.batch, TEST_BATCH)
    source = OneBatch(network.batch, network.shape, dtype=workload.state_dtype)
    with begun(Single(), workload, registry=registry, gpus=gpus, source=source) as trainer:
        rate = scalar(network.rate, workload.state_dtype)
        answers = [trainer.step_driver.update(step, rate) for step in range(STEPS)]
    return [float(answer["loss"]) for answer in answers]


def of_cpus(name: str) -> list[float]:
    """Return the stored losses of a network on CPUs."""
    found: list[float] = json.loads(FILE.read_text())[name]
    return found


TOLERANCE = 1e-3
"""Relative tolerance of float32 losses without tf32. The first loss, before any update, has 1/100 of this tolerance."""

NEAR = {"tf32": 0.02, "bfloat16": 0.05}
"""Relative tolerances of the losses if the factors of products are rounded."""


@pytest.mark.small
@pytest.mark.parametrize("name", ["lenet", "resnet20"])
def test_stored_losses_equal_new_losses_of_cpus(name: str) -> None:
    known = of_cpus(name)
    np.testing.assert_allclose(losses(name, "float32", load_kernels()), known, rtol=TOLERANCE / 10)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_losses_fall_by_more_than_the_tolerance(name: str) -> None:
    first, *_, last = of_cpus(name)
    assert last < first * (1 - 20 * TOLERANCE)


@pytest.mark.gpu_only
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_losses_on_a_gpu_equal_those_on_cpus(gpu: Gpu, name: str) -> None:
    found, known = losses(name, "float32", gpu.registry(), gpus=True), of_cpus(name)
    np.testing.assert_allclose(found[0], known[0], rtol=TOLERANCE / 100)
    np.testing.assert_allclose(found, known, rtol=TOLERANCE)


@pytest.mark.gpu_only
@pytest.mark.parametrize("precision", sorted(NEAR))
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_losses_with_rounded_products_are_near_those_of_cpus(gpu: Gpu, name: str, precision: str) -> None:
    dtype = "bfloat16" if precision == "bfloat16" else "float32"
    found = losses(name, dtype, gpu.registry(tf32=precision == "tf32"), gpus=True)
    np.testing.assert_allclose(found, of_cpus(name), rtol=NEAR[precision])


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: losses(name, "float32", load_kernels()) for name in NETWORKS}, indent=1) + "\n")
