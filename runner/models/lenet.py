"""LeNet for MNIST, as in Caffe (after LeCun et al. 1998)."""

from dataclasses import dataclass, field

from runner import nn
from runner.bounds import Count
from runner.engine.graph import NetworkBuilder, Tensor
from runner.engine.graph.initializers import lecun_normal
from runner.errors import require
from runner.models.base import Model

SMALLEST_UNPADDED = 16
"""Smallest side of an image for two unpadded 5x5 convolutions, each with 2x2 pooling: 16 becomes 12, 6, 2, then 1."""


@dataclass
class LeNet(Model):
    """LeNet as in Caffe: conv 5x5, pool 2x2, conv 5x5, pool 2x2, dense with ReLU, dense.

    431,080 parameters for 1x28x28 images of 10 classes.

    Other image sizes work too. As in Caffe, the convolutions are unpadded. If a side of the image is below 16, however,
    the convolutions are padded to keep the size, and images must be 4x4 or larger.

    filters: filters of each of the two convolutions. units: width of the hidden dense layer.
    """

    name: str = "lenet"
    filters: list[Count] = field(default_factory=lambda: [20, 50])
    units: Count = 500

    def __post_init__(self) -> None:
        require(len(self.filters) == 2, "model.filters", self.filters, "2 numbers")

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add layers conv1, pool1, conv2, pool2, flatten, fc1, relu1, fc2 and return the logits of fc2."""
        padding = "same" if min(net.graph.spec(x).shape[2:], default=SMALLEST_UNPADDED) < SMALLEST_UNPADDED else "valid"
        h = x
        for i, filters in enumerate(self.filters, start=1):
            fan_in = 25 * net.graph.spec(h).shape[1]
            h = nn.conv(net, h, filters, kernel=5, padding=padding, name=f"conv{i}", initializer=lecun_normal(fan_in))
            h = nn.max_pool(net, h, window=2, name=f"pool{i}")
        h = nn.flatten(net, h, name="flatten")
        h = nn.dense(net, h, self.units, name="fc1")
        h = nn.relu(net, h, name="relu1")
        return nn.dense(net, h, outputs, name="fc2", initializer=lecun_normal(self.units))
