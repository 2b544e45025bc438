"""The fast model of Overfeat (Sermanet et al. 2014), with the layer sizes of convnet-benchmarks."""

from dataclasses import dataclass, field

from runner import nn
from runner.bounds import Count, Rate
from runner.engine.graph import NetworkBuilder, Tensor
from runner.errors import require
from runner.models.base import Model


@dataclass
class Overfeat(Model):
    """Overfeat, the fast model: five convolutions, three of them followed by 2x2 max pooling, and three dense layers.

    145,920,872 parameters and 2,801,403,904 multiply-adds for 3x231x231 images of 1000 classes; other image sizes work
    too.

    filters: filters of each convolution. units: width of each hidden dense layer. dropout: rate after each of them.
    """

    name: str = "overfeat"
    filters: list[Count] = field(default_factory=lambda: [96, 256, 512, 1024, 1024])
    units: list[Count] = field(default_factory=lambda: [3072, 4096])
    dropout: Rate = 0.5

    def __post_init__(self) -> None:
        require(len(self.filters) == 5, "model.filters", self.filters, "5 numbers")
        require(len(self.units) == 2, "model.units", self.units, "2 numbers")

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add layers conv1, relu1, pool1, ... conv5, relu5, pool5, flatten, fc6, ... fc8; return the logits."""
        first, second, *rest = self.filters
        h = nn.conv(net, x, first, kernel=11, stride=4, name="conv1")
        h = nn.relu(net, h, name="relu1")
        h = nn.max_pool(net, h, window=2, name="pool1")
        h = nn.conv(net, h, second, kernel=5, name="conv2")
        h = nn.relu(net, h, name="relu2")
        h = nn.max_pool(net, h, window=2, name="pool2")
        for i, filters in enumerate(rest, start=3):
            h = nn.conv(net, h, filters, kernel=3, padding=1, name=f"conv{i}")
            h = nn.relu(net, h, name=f"relu{i}")
        h = nn.max_pool(net, h, window=2, name="pool5")
        h = nn.flatten(net, h, name="flatten")
        for i, units in enumerate(self.units, start=6):
            h = nn.dense(net, h, units, name=f"fc{i}")
            h = nn.relu(net, h, name=f"relu{i}")
            h = nn.dropout(net, h, self.dropout, name=f"dropout{i}")
        return nn.dense(net, h, outputs, name="fc8")
