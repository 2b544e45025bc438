"""Residual networks for 32x32 photographs (He et al. 2015, section 4.2, and 2016, "Identity mappings")."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from runner import nn
from runner.bounds import Bounds, Rate
from runner.engine.graph.initializers import Uniform, he_normal
from runner.engine.graph.network import NetworkBuilder
from runner.engine.graph.tensor import Tensor
from runner.models.base import Model, require

BLOCKS = {"basic": 2, "bottleneck": 3}
"""Value of ``block`` -> number of convolutions of one residual unit."""
UNITS = ("original", "preactivation")
WIDTHS = (16, 32, 64)
"""Filters of the 3x3 convolutions of each stage."""


@dataclass(frozen=True)
class Unit:
    """A residual unit, counted from 1 within its stage. width: filters of its 3x3 convolutions."""

    stage: int
    number: int
    width: int

    @property
    def name(self) -> str:
        """Prefix of the names of the unit's layers."""
        return f"stage{self.stage}_unit{self.number}"

    @property
    def stride(self) -> int:
        """Stride of the unit's first convolution: 2 in the first units of stages 2 and 3, which halve the image."""
        return 2 if self.stage > 1 and self.number == 1 else 1


@dataclass
class ResNetCifar(Model):
    """Residual networks for 32x32 photographs: a convolution, three stages of units, a global mean and a dense layer.

    For 3x32x32 images of 10 classes, ResNet-110 with basic blocks has 1,727,962 parameters, and ResNet-1001 with
    preactivation bottlenecks has 10,327,706. No convolution has a bias. The size of the image is halved twice, rounded
    up, so any size works.

    depth: number of layers with weights, except in shortcuts. block: "basic", two 3x3 convolutions, and a shortcut that
    adds channels of zeros if needed; or "bottleneck", convolutions of 1x1, 3x3 and 1x1, the last 4 times as wide, and a
    1x1 convolution as shortcut if the number of channels changes. unit: "original", normalization and ReLU follow each
    convolution, but the last ReLU follows the sum; or "preactivation", normalization and ReLU precede each convolution
    and nothing follows the sum. norm_decay: decay of the moving averages used in evaluation.
    """

    name: str = "resnet_cifar"
    depth: Annotated[int, Bounds(8, 10_000)] = 20
    block: str = "basic"
    unit: str = "preactivation"
    norm_decay: Rate = 0.9

    def __post_init__(self) -> None:
        require(self.block in BLOCKS, "block", repr(self.block), f"one of {', '.join(BLOCKS)}")
        require(self.unit in UNITS, "unit", repr(self.unit), f"one of {', '.join(UNITS)}")
        step = len(WIDTHS) * BLOCKS[self.block]
        fits = self.depth > 2 and (self.depth - 2) % step == 0
        smallest = ", ".join(str(step * n + 2) for n in (1, 2, 3))
        require(fits, "depth", self.depth, f"{step}n+2 for model.block={self.block}: {smallest}, ...")

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add layers conv1, the layers of stage1_unit1, ... stage3_unitN, pool and fc; return the logits of fc."""
        h = _conv(net, x, WIDTHS[0], kernel=3, name="conv1")
        if self.unit == "original":
            h = nn.relu(net, self._norm(net, h, "norm1"), name="relu1")
            for unit in self._units():
                h = self._original(net, h, unit)
        else:
            for unit in self._units():
                h = self._preactivation(net, h, unit)
            h = nn.relu(net, self._norm(net, h, "last_norm"), name="last_relu")
        h = nn.global_avg_pool(net, h, name="pool")
        limit = net.graph.spec(h).shape[1] ** -0.5
        return nn.dense(net, h, outputs, initializer=Uniform(-limit, limit), name="fc")

    def _units(self) -> Iterator[Unit]:
        per_stage = (self.depth - 2) // (len(WIDTHS) * BLOCKS[self.block])
        for stage, width in enumerate(WIDTHS, start=1):
            for number in range(1, per_stage + 1):
                yield Unit(stage, number, width)

    def _original(self, net: NetworkBuilder, x: Tensor, unit: Unit) -> Tensor:
        """Add an original unit, ReLU(shortcut + branch); its branch ends in a normalization (2016, figure 4 a)."""
        h = x
        for i, (filters, kernel, stride) in enumerate(self._convolutions(unit), start=1):
            if i > 1:
                h = nn.relu(net, h, name=f"{unit.name}_relu{i - 1}")
            h = _conv(net, h, filters, kernel=kernel, stride=stride, name=f"{unit.name}_conv{i}")
            h = self._norm(net, h, f"{unit.name}_norm{i}")
        h = nn.add(net, h, self._shortcut(net, x, unit), name=f"{unit.name}_add")
        return nn.relu(net, h, name=f"{unit.name}_relu{BLOCKS[self.block]}")

    def _preactivation(self, net: NetworkBuilder, x: Tensor, unit: Unit) -> Tensor:
        """Add a preactivation unit, shortcut + branch; its branch ends in a convolution (2016, figure 4 e)."""
        h = source = x
        for i, (filters, kernel, stride) in enumerate(self._convolutions(unit), start=1):
            h = nn.relu(net, self._norm(net, h, f"{unit.name}_norm{i}"), name=f"{unit.name}_relu{i}")
            if i == 1 and self._activates_shortcut(unit):
                source = h
            h = _conv(net, h, filters, kernel=kernel, stride=stride, name=f"{unit.name}_conv{i}")
        return nn.add(net, h, self._shortcut(net, source, unit), name=f"{unit.name}_add")

    def _activates_shortcut(self, unit: Unit) -> bool:
        """Return whether the shortcut reads the unit's first ReLU: if it has a convolution or the unit is the first."""
        return unit.number == 1 and (unit.stage == 1 or self.block == "bottleneck")

    def _convolutions(self, unit: Unit) -> list[tuple[int, int, int]]:
        """Return (filters, kernel, stride) of each convolution of the unit's branch."""
        if self.block == "basic":
            return [(unit.width, 3, unit.stride), (unit.width, 3, 1)]
        return [(unit.width, 1, unit.stride), (unit.width, 3, 1), (4 * unit.width, 1, 1)]

    def _shortcut(self, net: NetworkBuilder, x: Tensor, unit: Unit) -> Tensor:
        """Return x if it has the shape of the branch's result; otherwise add layers that give a shortcut this shape."""
        channels = self._convolutions(unit)[-1][0]
        name = f"{unit.name}_shortcut"
        if net.graph.spec(x).shape[1] == channels:
            return x
        if self.block == "basic":
            return nn.zero_padded_shortcut(net, x, channels, stride=unit.stride, name=name)
        h = _conv(net, x, channels, kernel=1, stride=unit.stride, name=name)
        return self._norm(net, h, f"{name}_norm") if self.unit == "original" else h

    def _norm(self, net: NetworkBuilder, x: Tensor, name: str) -> Tensor:
        return nn.batch_norm(net, x, decay=self.norm_decay, name=name)


def _conv(net: NetworkBuilder, x: Tensor, filters: int, *, kernel: int, name: str, stride: int = 1) -> Tensor:
    """Add a convolution with padding that keeps the image size at stride 1; no bias, He normal weights (fan-out)."""
    initializer = he_normal(kernel * kernel * filters)
    return nn.conv(
        net, x, filters, kernel, stride=stride, padding=kernel // 2, bias=None, initializer=initializer, name=name
    )
