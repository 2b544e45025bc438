"""Residual networks for 32x32 photographs (He et al. 2015, section 4.2, and 2016, "Identity mappings")."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from runner.engine.graph import NetworkBuilder, Tensor
from runner.errors import require
from runner.models.residual import BLOCKS, UNITS, ResidualNetwork, convolve


@dataclass
class ResNetCifar(ResidualNetwork):
    """ResNets for 32x32 photographs: a convolution, three stages of units, global average pooling, a dense layer.

    For 3x32x32 images of 10 classes, ResNet-110 with basic blocks has 1,727,962 parameters, and ResNet-1001 with
    preactivation bottlenecks has 10,327,706. The size of the image is halved twice, rounded up, so any size works. The
    settings are those of :class:`ResidualNetwork`.
    """

    WIDTHS: ClassVar[tuple[int, ...]] = (16, 32, 64)

    name: str = "resnet_cifar"

    def __post_init__(self) -> None:
        super().__post_init__()
        step = len(self.WIDTHS) * len(BLOCKS[self.block])
        fits = self.depth > 2 and (self.depth - 2) % step == 0
        smallest = ", ".join(str(step * n + 2) for n in (1, 2, 3))
        require(fits, "model.depth", self.depth, f"{step}n+2 for model.block={self.block}: {smallest}, ...")

    def units_per_stage(self) -> Sequence[int]:
        stages = len(self.WIDTHS)
        return [(self.depth - 2) // (stages * len(BLOCKS[self.block]))] * stages

    def stem(self, net: NetworkBuilder, x: Tensor) -> Tensor:
        """Add conv1, and norm1 and relu1 if such layers follow each convolution of a unit (2016, appendix)."""
        h = convolve(net, x, self.WIDTHS[0], kernel=3, name="conv1")
        for kind in UNITS[self.unit][0].split("conv")[1].split():
            h = self.activate(net, h, kind, f"{kind}1")
        return h
