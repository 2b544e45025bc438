"""The first steps of whole networks; ``python -m tests.gpu.courses`` stores the losses of CPUs, in float32.

On a GPU machine without the libraries of fast CPU kernels, CPUs would need minutes for these steps. The losses are
therefore stored in a file, which the suite compares with those of CPUs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.session import scalar
from runner.kernels.registry import Registry
from runner.models.alexnet import AlexNet
from runner.models.base import Model
from runner.models.lenet import LeNet
from runner.models.resnet_cifar import ResNetCifar
from runner.optimizers.sgd import Momentum
from runner.strategies.base import Task
from runner.strategies.single import Single
from tests.strategies.networks import CLASSES, TEST_BATCH, Examples
from tests.strategies.training import opened

STEPS = 10
FILE = Path(__file__).with_name("losses.json")


@dataclass(frozen=True)
class Network:
    """A network that is trained on one batch. shape: of an image."""

    model: Model
    shape: tuple[int, int, int]
    batch: int
    rate: float


NETWORKS: Mapping[str, Network] = {
    "lenet": Network(LeNet(), (1, 28, 28), 16, 0.01),
    "resnet20": Network(ResNetCifar(depth=20), (3, 32, 32), 8, 0.01),
    "alexnet": Network(AlexNet(dropout=0.0), (3, 224, 224), 4, 0.001),
}
"""AlexNet has no dropout, because its noise would dominate ten steps."""


class OneBatch(Examples):
    """The same examples in every step, so that the loss falls and a wrong update shows."""

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, NDArray[Any]]:
        """Return the examples of the first step."""
        return super().read(split, 0, lo, hi)


def losses(name: str, dtype: str, registry: Registry, *, gpus: bool = False) -> list[float]:
    """Return the losses of the first steps of ``single``; gradient clipping is active."""
    network = NETWORKS[name]
    optimizer = Momentum(lr=network.rate, clip_norm=1.0)
    forward = network.model.network(CLASSES)
    task = Task(forward, optimizer, network.shape, dtype, 7, network.batch, TEST_BATCH)
    source = OneBatch(network.batch, network.shape, task.state_dtype)
    with opened(Single(), task, registry, gpus=gpus, source=source) as trainer:
        trainer.session.run("init")
        rate = scalar(network.rate, task.state_dtype)
        answers = [trainer.step_driver.update(step, rate) for step in range(STEPS)]
    return [float(answer["loss"]) for answer in answers]


def of_cpus(name: str) -> list[float]:
    """Return the stored losses."""
    found: list[float] = json.loads(FILE.read_text())[name]
    return found


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: losses(name, "float32", load_kernels()) for name in NETWORKS}, indent=1) + "\n")
