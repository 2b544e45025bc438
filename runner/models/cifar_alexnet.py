"""A small AlexNet for 32x32 photographs (after Krizhevsky 2014, "One weird trick")."""

from dataclasses import dataclass, field

from runner import nn
from runner.bounds import Count, Rate
from runner.engine.graph import NetworkBuilder, Tensor
from runner.errors import require
from runner.models.alexnet import KERNELS, POOLED
from runner.models.base import Model


@dataclass
class CifarAlexNet(Model):
    """A small AlexNet for 32x32 photographs: five convolutions and three dense layers.

    600,010 parameters and 10,384,384 multiply-adds for 3x32x32 images of 10 classes. As in AlexNet, most of the
    arithmetic is in the convolutions and most of the parameters are in the dense layers.

    filters: filters of each convolution. units: width of each hidden dense layer. dropout: rate after these layers.
    """

    name: str = "cifar_alexnet"
    filters: list[Count] = field(default_factory=lambda: [24, 32, 48, 48, 32])
    units: Count = 512
    dropout: Rate = 0.5

    def __post_init__(self) -> None:
        require(len(self.filters) == len(KERNELS), "model.filters", self.filters, f"{len(KERNELS)} numbers")

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add layers conv1, relu1, pool1, ... conv5, relu5, pool5, flatten, fc6, ... fc8; return the logits."""
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
        return nn.dense(net, h, outputs, name="fc8")
