"""A custom model: a network of convolutions only, after Springenberg et al. 2015, "Striving for Simplicity"."""

from dataclasses import dataclass

from runner import nn
from runner.bounds import Count, Rate, SmallCount
from runner.engine.graph import NetworkBuilder, Tensor
from runner.models.base import Model
from runner.plugin import Plugin


@dataclass
class AllConv(Model):
    """Stages of two 3x3 convolutions, the second with stride 2; then a 1x1 filter per class and a global mean.

    filters: number of filters in the first stage, doubled in each later stage. stages: number of times the image is
    halved. dropout: dropout rate after each stage.
    """

    name: str = "all_conv"
    filters: Count = 16
    stages: SmallCount = 2
    dropout: Rate = 0.0

    def forward(self, net: NetworkBuilder, x: Tensor, classes: int) -> Tensor:
        """Add layers conv1, relu1, shrink1, ... and return the average of each class's map."""
        h = x
        for stage in range(1, self.stages + 1):
            filters = self.filters * 2 ** (stage - 1)
            h = nn.conv(net, h, filters, kernel=3, padding="same", name=f"conv{stage}")
            h = nn.relu(net, h, name=f"relu{stage}")
            h = nn.conv(net, h, filters, kernel=3, stride=2, padding="same", name=f"shrink{stage}")
            h = nn.relu(net, h, name=f"shrink_relu{stage}")
            h = nn.dropout(net, h, self.dropout, name=f"dropout{stage}")
        h = nn.conv(net, h, classes, kernel=1, name="classes")
        return nn.global_avg_pool(net, h, name="average")


plugin = Plugin(models={"all_conv": AllConv})
