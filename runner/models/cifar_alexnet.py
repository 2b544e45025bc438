"""AlexNet in small, for 32x32 photographs (after Krizhevsky 2014, "One weird trick")."""

from dataclasses import dataclass, field

from runner import nn
from runner.engine.network import NetworkBuilder
from runner.engine.tensor import Tensor
from runner.models.base import Model, require, require_rate, require_sizes

KERNELS = (5, 5, 3, 3, 3)
POOLED = (1, 2, 5)
"""Numbers of the convolutions that a max pooling follows, as in the large network."""


@dataclass
class CifarAlexNet(Model):
    """AlexNet in small, for 32x32 photographs: five convolutions and three dense layers.

    600,010 parameters and 10,384,384 multiply-adds for 3x32x32 images of 10 classes: as in the large network the
    convolutions have nearly all of the work and the dense layers nearly all of the parameters.

    filters: of the five convolutions. units: of each hidden dense layer. dropout: rate after these.
    """

    name: str = "cifar_alexnet"
    filters: list[int] = field(default_factory=lambda: [24, 32, 48, 48, 32])
    units: int = 512
    dropout: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sizes("filters", self.filters, count=len(KERNELS))
        require(self.units > 0, "units", self.units, "a whole number above 0")
        require_rate("dropout", self.dropout)

    def forward(self, net: NetworkBuilder, x: Tensor, classes: int) -> Tensor:
        """Add layers conv1, relu1, pool1, ... conv5, relu5, pool5, flatten, fc6, ... fc8; return its logits."""
        h = x
        for i, (filters, kernel) in enumerate(zip(self.filters, KERNELS, strict=True), start=1):
            h = nn.conv(net, h, filters, kernel=kernel, padding="same", name=f"conv{i}")
            h = nn.relu(net, h, name=f"relu{i}")
            if i in POOLED:
                h = nn.max_pool(net, h, window=3, stride=2, padding=1, name=f"pool{i}")
        h = nn.flatten(net, h, name="flatten")
        for i in (6, 7):
            h = nn.dense(net, h, self.units, name=f"fc{i}")
            h = nn.relu(net, h, name=f"relu{i}")
            h = nn.dropout(net, h, self.dropout, name=f"dropout{i}")
        return nn.dense(net, h, classes, name="fc8")
