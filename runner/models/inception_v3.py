"""Inception v3 (Szegedy et al. 2016, "Rethinking the Inception architecture"), in the form of the Cloud TPU guide."""

from collections.abc import Sequence
from dataclasses import dataclass

from runner import nn
from runner.bounds import NonNegative, Rate
from runner.engine.graph import Initializer, NetworkBuilder, Normal, Tensor
from runner.models.base import Model


@dataclass(frozen=True)
class Conv:
    """A convolution of a branch. padding: "same" or "valid"."""

    filters: int
    kernel: nn.Size = 1
    stride: int = 1
    padding: str = "same"


@dataclass(frozen=True)
class Split:
    """The two convolutions that end a branch of the last modules: both read one input, and both outputs are results."""

    filters: int


@dataclass(frozen=True)
class Pool:
    """A 3x3 pooling: "avg" keeps the size of the image, "max" halves the size."""

    kind: str


Branch = Sequence[Conv | Split | Pool]

STEM: Branch = (
    Conv(32, 3, stride=2, padding="valid"),
    Conv(32, 3, padding="valid"),
    Conv(64, 3),
    Pool("max"),
    Conv(80, 1, padding="valid"),
    Conv(192, 3, padding="valid"),
    Pool("max"),
)
ROW, COLUMN = (1, 7), (7, 1)
"""Kernels of the factorized 7x7 convolutions."""


def _module_5(project: int) -> Sequence[Branch]:
    """Return the branches of a module for 35x35 images (figure 5)."""
    return (
        (Conv(64),),
        (Conv(48), Conv(64, 5)),
        (Conv(64), Conv(96, 3), Conv(96, 3)),
        (Pool("avg"), Conv(project)),
    )


def _module_6(width: int) -> Sequence[Branch]:
    """Return the branches of a module for 17x17 images (figure 6)."""
    return (
        (Conv(192),),
        (Conv(width), Conv(width, ROW), Conv(192, COLUMN)),
        (Conv(width), Conv(width, COLUMN), Conv(width, ROW), Conv(width, COLUMN), Conv(192, ROW)),
        (Pool("avg"), Conv(192)),
    )


_MODULE_7: Sequence[Branch] = (
    (Conv(320),),
    (Conv(384), Split(384)),
    (Conv(448), Conv(384, 3), Split(384)),
    (Pool("avg"), Conv(192)),
)
"""Branches of a module for 8x8 images (figure 7)."""

MODULES: dict[str, Sequence[Branch]] = {
    "5b": _module_5(32),
    "5c": _module_5(64),
    "5d": _module_5(64),
    "6a": (
        (Conv(384, 3, stride=2, padding="valid"),),
        (Conv(64), Conv(96, 3), Conv(96, 3, stride=2, padding="valid")),
        (Pool("max"),),
    ),
    "6b": _module_6(128),
    "6c": _module_6(160),
    "6d": _module_6(160),
    "6e": _module_6(192),
    "7a": (
        (Conv(192), Conv(320, 3, stride=2, padding="valid")),
        (Conv(192), Conv(192, ROW), Conv(192, COLUMN), Conv(192, 3, stride=2, padding="valid")),
        (Pool("max"),),
    ),
    "7b": _MODULE_7,
    "7c": _MODULE_7,
}
"""Name of an Inception module -> its branches. The names are those of TensorFlow's code."""

AUXILIARY_AFTER = "6e"
"""The module whose result the auxiliary head reads."""


@dataclass
class InceptionV3(Model):
    """Inception v3: five convolutions, eleven Inception modules, global average pooling and one dense layer.

    23,817,352 trained parameters for 3x299x299 images of 1000 classes, and 3,325,800 more in the auxiliary head; other
    image sizes work too. A batch normalization without gamma and a ReLU follow each convolution, which has no bias.

    dropout: rate before the logits. auxiliary_weight: weight of the loss of the auxiliary head; 0 for no head.
    norm_decay: decay of the moving averages used in evaluation.
    """

    name: str = "inception_v3"
    dropout: Rate = 0.2
    auxiliary_weight: NonNegative = 0.4
    norm_decay: Rate = 0.9997

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add layers stem_1, ..., the layers of modules 5b, ... 7c, pool, dropout and fc; return the logits."""
        (h,) = self._branch(net, x, STEM, "stem")
        for name, branches in MODULES.items():
            ends = [
                end
                for number, branch in enumerate(branches, start=1)
                for end in self._branch(net, h, branch, f"inception_{name}_branch{number}")
            ]
            h = nn.concat(net, ends, name=f"inception_{name}_concat")
            if name == AUXILIARY_AFTER and self.auxiliary_weight:
                net.auxiliary.append((self._auxiliary_head(net, h, outputs), self.auxiliary_weight))
        h = nn.global_avg_pool(net, h, name="pool")
        h = nn.dropout(net, h, self.dropout, name="dropout")
        return nn.dense(net, h, outputs, name="fc")

    def _branch(self, net: NetworkBuilder, x: Tensor, branch: Branch, prefix: str) -> list[Tensor]:
        """Add the layers of a branch, numbered from 1; return its results."""
        for number, layer in enumerate(branch, start=1):
            name = f"{prefix}_{number}"
            match layer:
                case Conv():
                    x = self._conv(net, x, layer, name)
                case Split(filters):
                    sides = {"row": (1, 3), "column": (3, 1)}
                    return [self._conv(net, x, Conv(filters, side), f"{name}_{key}") for key, side in sides.items()]
                case Pool("avg"):
                    x = nn.avg_pool(net, x, window=3, stride=1, padding=1, name=name)
                case Pool():
                    x = nn.max_pool(net, x, window=3, stride=2, name=name)
        return [x]

    def _auxiliary_head(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add the layers aux_pool, ... aux_fc, and return the logits of aux_fc."""
        h = nn.avg_pool(net, x, window=5, stride=3, name="aux_pool")
        h = self._conv(net, h, Conv(128), "aux_conv1")
        rows, columns = net.graph.spec(h).shape[2:]
        h = self._conv(net, h, Conv(768, (rows, columns), padding="valid"), "aux_conv2", Normal(0.01))
        h = nn.flatten(net, h, name="aux_flatten")
        return nn.dense(net, h, outputs, initializer=Normal(0.001), name="aux_fc")

    def _conv(
        self, net: NetworkBuilder, x: Tensor, conv: Conv, name: str, initializer: Initializer | None = None
    ) -> Tensor:
        """Add a convolution, its normalization and its ReLU."""
        h = nn.conv(
            net,
            x,
            conv.filters,
            conv.kernel,
            stride=conv.stride,
            padding=conv.padding,
            bias=None,
            initializer=initializer,
            name=name,
        )
        h = nn.batch_norm(net, h, decay=self.norm_decay, epsilon=1e-3, scale=False, name=f"{name}_norm")
        return nn.relu(net, h, name=f"{name}_relu")
