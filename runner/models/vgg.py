"""Configurations A and D of the VGG networks (Simonyan and Zisserman 2015, table 1)."""

from dataclasses import dataclass, field
from typing import ClassVar

from runner import nn
from runner.bounds import Count, Rate
from runner.engine.graph import NetworkBuilder, Tensor
from runner.errors import require
from runner.models.base import Model


@dataclass
class VggA(Model):
    """VGG-A: eight 3x3 convolutions in five stages, each ending in 2x2 max pooling, and three dense layers.

    132,863,336 parameters and 7,609,090,048 multiply-adds for 3x224x224 images of 1000 classes. Every stage halves the
    image, rounded down, so the sides of the image must be at least 32.

    widths: filters of the convolutions of each stage. units: width of each hidden dense layer. dropout: rate after
    these layers. CONVOLUTIONS: number of convolutions of each stage.
    """

    CONVOLUTIONS: ClassVar[tuple[int, ...]] = (1, 1, 2, 2, 2)

    name: str = "vgg_a"
    widths: list[Count] = field(default_factory=lambda: [64, 128, 256, 512, 512])
    units: Count = 4096
    dropout: Rate = 0.5

    def __post_init__(self) -> None:
        stages = len(self.CONVOLUTIONS)
        require(len(self.widths) == stages, "model.widths", self.widths, f"{stages} numbers")

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add layers stage1_conv1, stage1_relu1, stage1_pool, ... flatten, fc1, ... fc3; return the logits."""
        h = x
        for i, (width, convolutions) in enumerate(zip(self.widths, self.CONVOLUTIONS, strict=True), start=1):
            for j in range(1, convolutions + 1):
                h = nn.conv(net, h, width, kernel=3, padding=1, name=f"stage{i}_conv{j}")
                h = nn.relu(net, h, name=f"stage{i}_relu{j}")
            h = nn.max_pool(net, h, window=2, name=f"stage{i}_pool")
        h = nn.flatten(net, h, name="flatten")
        for i in (1, 2):
            h = nn.dense(net, h, self.units, name=f"fc{i}")
            h = nn.relu(net, h, name=f"fc{i}_relu")
            h = nn.dropout(net, h, self.dropout, name=f"fc{i}_dropout")
        return nn.dense(net, h, outputs, name="fc3")


@dataclass
class VggD(VggA):
    """VGG-D, also called VGG-16: like VGG-A, with thirteen convolutions.

    138,357,544 parameters and 15,470,264,320 multiply-adds for 3x224x224 images of 1000 classes.
    """

    CONVOLUTIONS: ClassVar[tuple[int, ...]] = (2, 2, 3, 3, 3)

    name: str = "vgg_d"
