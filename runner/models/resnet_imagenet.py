"""Residual networks for 224x224 photographs (He et al. 2015, table 1, and 2016, "Identity mappings", section 5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from runner import nn
from runner.bounds import Count
from runner.engine.graph import NetworkBuilder, Tensor
from runner.errors import require, require_one_of
from runner.models.residual import ResidualNetwork, convolve

DEPTHS: dict[str, dict[int, tuple[int, ...]]] = {
    "basic": {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)},
    "bottleneck": {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)},
}
"""Value of ``block`` -> depth -> number of units of each stage."""


@dataclass
class ResNetImageNet(ResidualNetwork):
    """Residual networks for 224x224 photographs: a convolution, max pooling, four stages of units, a dense layer.

    For 3x224x224 images of 1000 classes, ResNet-152 has 60,192,808 parameters with original units and 60,185,256 with
    preactivation units; other image sizes work too. For all kinds of units, a normalization, a ReLU and max pooling
    follow conv1. The settings are those of :class:`ResidualNetwork`.
    """

    WIDTHS: ClassVar[tuple[int, ...]] = (64, 128, 256, 512)

    name: str = "resnet_imagenet"
    depth: Count = 50
    block: str = "bottleneck"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("model.block", self.block, DEPTHS)
        known = ", ".join(map(str, DEPTHS[self.block]))
        expected = f"one of {known} for model.block={self.block}"
        require(self.depth in DEPTHS[self.block], "model.depth", self.depth, expected)

    def units_per_stage(self) -> Sequence[int]:
        return DEPTHS[self.block][self.depth]

    def stem(self, net: NetworkBuilder, x: Tensor) -> Tensor:
        """Add conv1, norm1, relu1 and pool1, which together divide the sides of the image by 4."""
        h = convolve(net, x, self.WIDTHS[0], kernel=7, stride=2, name="conv1")
        for kind in ("norm", "relu"):
            h = self.activate(net, h, kind, f"{kind}1")
        return nn.max_pool(net, h, window=3, stride=2, padding=1, name="pool1")
