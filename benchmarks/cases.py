"""The measured cases by name. Each case has a network, an image shape and a batch size."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One network on one batch.

    model: overrides that choose the model. shape: shape of an image, (C, H, W). turn: number of consecutive steps of an
    implementation before the next one runs. precisions: measured if the command names none. learning_rate: large enough
    that the loss falls from the first step, so that the losses reveal a wrong update.
    """

    name: str
    model: tuple[str, ...]
    shape: tuple[int, int, int]
    classes: int
    batch: int
    turn: int
    precisions: tuple[str, ...] = ("float32",)
    learning_rate: float = 0.001

    @property
    def title(self) -> str:
        """Return a line that describes the case."""
        return f"{self.name}, batch {self.batch} of {'x'.join(map(str, self.shape))}, {self.classes} classes"

    def overrides(
        self,
        *,
        threads: int,
        precision: str = "float32",
        parallelism: Sequence[str] = ("parallelism=single",),
        batch: int | None = None,
        batches: int = 1,
    ) -> tuple[str, ...]:
        """Return overrides for runner: this network, the momentum optimizer and ``batches`` synthetic batches.

        threads: thread budget of each worker. batch: examples per step over all workers; by default, the case's batch.
        """
        examples = batch or self.batch
        return (
            *self.model,
            *parallelism,
            "tracking=none",
            f"cluster.threads_per_worker={threads}",
            f"precision={precision}",
            "data=synthetic",
            f"data.shape=[{','.join(map(str, self.shape))}]",
            f"data.classes={self.classes}",
            f"data.examples={examples * batches}",
            f"train.batch_size={examples}",
            "optimizer=momentum",
            f"optimizer.lr={self.learning_rate}",
            "optimizer.clip_norm=null",
            "schedule=constant",
        )


_MNIST = (1, 28, 28)
_CIFAR = (3, 32, 32)
_IMAGENET = (3, 224, 224)
_RESNET = ("model=resnet_cifar", "model.unit=preactivation")
PRECISIONS = ("float32", "bfloat16")
"""Precisions that are measured on CPUs."""

_ALL = (
    Case(
        "alexnet",
        ("model=alexnet_benchmark",),
        _IMAGENET,
        1000,
        batch=32,
        turn=3,
        precisions=PRECISIONS,
        learning_rate=1e-4,
    ),
    Case("overfeat", ("model=overfeat_benchmark",), (3, 231, 231), 1000, batch=16, turn=2, learning_rate=1e-5),
    Case(
        "vgg_a", ("model=vgg_a_benchmark",), _IMAGENET, 1000, batch=8, turn=2, precisions=PRECISIONS, learning_rate=1e-5
    ),
    Case("googlenet", ("model=googlenet_benchmark",), _IMAGENET, 1000, batch=16, turn=2, learning_rate=1e-5),
    Case("resnet20", (*_RESNET, "model.depth=20"), _CIFAR, 10, batch=128, turn=4, learning_rate=0.01),
    Case("resnet110", (*_RESNET, "model.depth=110"), _CIFAR, 10, batch=128, turn=2, learning_rate=0.002),
    Case(
        "resnet1001",
        (*_RESNET, "model.depth=1001", "model.block=bottleneck"),
        _CIFAR,
        10,
        batch=32,
        turn=2,
        learning_rate=1e-4,
    ),
    Case(
        "resnet50",
        ("model=resnet_imagenet", "model.unit=original"),
        _IMAGENET,
        1000,
        batch=8,
        turn=2,
        learning_rate=1e-5,
    ),
    Case(
        "inception_v3",
        ("model=inception_v3", "model.dropout=0", "model.auxiliary_weight=0"),
        (3, 299, 299),
        1000,
        batch=8,
        turn=2,
        learning_rate=1e-5,
    ),
    Case("mlp", ("model=mlp", "model.hidden=[512,512]"), _MNIST, 10, batch=32, turn=50),
    Case("lenet", ("model=lenet",), _MNIST, 10, batch=32, turn=50),
    Case("lenet_b1", ("model=lenet",), _MNIST, 10, batch=1, turn=100, learning_rate=0.0002),
    Case("cifar_convnet", ("model=cifar_convnet", "model.dropout=0"), _CIFAR, 10, batch=32, turn=10),
    Case("smoke", ("model=lenet", "model.filters=[2,3]", "model.units=8"), (1, 16, 16), 4, batch=4, turn=2),
)

CASES = {case.name: case for case in _ALL}
"""Every case by name. Two are measured only on request: "smoke", for tests, and "resnet1001", because some frameworks
compile it for many minutes."""
