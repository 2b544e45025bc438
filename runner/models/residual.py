"""Residual networks: units of a branch and a shortcut (He et al. 2016, "Identity mappings")."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from runner import nn
from runner.bounds import Bounds, NonNegative, Rate
from runner.engine.graph import NetworkBuilder, Tensor, Uniform, he_normal
from runner.errors import require, require_one_of
from runner.models.base import Model

BLOCKS = {"single": ((1, 3),), "basic": ((1, 3), (1, 3)), "bottleneck": ((1, 1), (1, 3), (4, 1))}
"""Value of ``block`` -> (filters as a multiple of the stage's width, kernel size) of each convolution of a branch."""
UNITS = {
    "original": ("conv norm relu", 1),
    "bn_after_addition": ("conv norm relu", 2),
    "relu_before_addition": ("conv norm relu", 0),
    "relu_only_preactivation": ("relu conv norm", 0),
    "preactivation": ("norm relu conv", 0),
}
"""Value of ``unit`` -> the layers of each convolution in order, and the number of last layers that follow the sum."""
SHORTCUTS: dict[str, tuple[str, ...]] = {
    "identity": (),
    "constant": ("shortcut_scale", "branch_scale"),
    "exclusive_gating": ("gate_bias",),
    "shortcut_only_gating": ("gate_bias",),
    "conv1x1": (),
    "dropout": ("shortcut_dropout",),
}
"""Value of ``shortcut`` -> the other settings that it reads."""

Factor = float | Tensor


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
        """Stride of the unit's first convolution: 2 in the first unit of the second and later stages, else 1."""
        return 2 if self.stage > 1 and self.number == 1 else 1


@dataclass
class ResidualNetwork(Model):
    """The base class of residual networks: the settings and layers of units.

    depth: number of layers with weights, except in shortcuts. block: the branch F of a unit. "basic": two 3x3
    convolutions; "single": one 3x3 convolution; "bottleneck": convolutions of 1x1, 3x3 and 1x1, the last 4 times as
    wide. No convolution has a bias, except in gates. norm_decay: decay of the moving averages used in evaluation.

    unit: the order of layers (figure 4). "original": normalization and ReLU follow each convolution, but the last
    ReLU follows the sum; "bn_after_addition": the last normalization and ReLU follow the sum; "relu_before_addition":
    nothing follows the sum; "relu_only_preactivation": ReLU precedes and normalization follows each convolution;
    "preactivation": normalization and ReLU precede each convolution.

    shortcut: the sum in an original unit (table 1). "identity": x + F(x). "constant": shortcut_scale * x +
    branch_scale * F(x). "exclusive_gating": (1 - g) * x + g * F(x); the gate g is the sigmoid of a 1x1 convolution of x
    whose bias begins at gate_bias. "shortcut_only_gating": (1 - g) * x + F(x). "conv1x1": c(x) + F(x) with a normalized
    1x1 convolution c in every unit. "dropout": d(x) + F(x), where d is dropout with rate shortcut_dropout.

    Where the number of channels grows, an identity shortcut adds channels of zeros; in networks of bottlenecks, it is a
    1x1 convolution. WIDTHS: filters of the 3x3 convolutions of each stage.
    """

    WIDTHS: ClassVar[tuple[int, ...]] = ()

    depth: Annotated[int, Bounds(5, 10_000)] = 20
    block: str = "basic"
    unit: str = "preactivation"
    shortcut: str = "identity"
    shortcut_scale: NonNegative = 0.5
    branch_scale: NonNegative = 0.5
    gate_bias: Annotated[float, Bounds(-100, 100)] = -6.0
    shortcut_dropout: Rate = 0.5
    norm_decay: Rate = 0.9

    def __post_init__(self) -> None:
        for key, known in (("block", BLOCKS), ("unit", UNITS), ("shortcut", SHORTCUTS)):
            require_one_of(f"model.{key}", getattr(self, key), known)
        defined = self.shortcut == "identity" or self.unit == "original"
        expected = f"identity with model.unit={self.unit}; use model.unit=original"
        require(defined, "model.shortcut", self.shortcut, expected)
        for key in sorted(set().union(*SHORTCUTS.values()).difference(SHORTCUTS[self.shortcut])):
            value, default = getattr(self, key), getattr(ResidualNetwork, key)
            readers = " or ".join(shortcut for shortcut, keys in SHORTCUTS.items() if key in keys)
            unused = f"the default, {default}, with model.shortcut={self.shortcut}; only {readers} reads it"
            require(value == default, f"model.{key}", value, unused)

    @abstractmethod
    def stem(self, net: NetworkBuilder, x: Tensor) -> Tensor:
        """Add the layers before the first unit."""

    @abstractmethod
    def units_per_stage(self) -> Sequence[int]:
        """Return the number of units of each stage."""

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add the stem, the layers of stage1_unit1, stage1_unit2, ..., pool and fc; return the logits of fc."""
        h = self.stem(net, x)
        for stage, (width, units) in enumerate(zip(self.WIDTHS, self.units_per_stage(), strict=True), start=1):
            for number in range(1, units + 1):
                h = self._unit(net, h, Unit(stage, number, width))
        # The layers that precede a convolution also follow the last unit (appendix).
        for kind in UNITS[self.unit][0].split("conv")[0].split():
            h = self.activate(net, h, kind, f"last_{kind}")
        h = nn.global_avg_pool(net, h, name="pool")
        limit = net.graph.spec(h).shape[1] ** -0.5
        return nn.dense(net, h, outputs, initializer=Uniform(-limit, limit), name="fc")

    def _unit(self, net: NetworkBuilder, x: Tensor, unit: Unit) -> Tensor:
        """Add a unit: a branch, a shortcut, their sum, and the layers that follow the sum (2016, figure 4)."""
        order, moved = UNITS[self.unit]
        steps = [(kind, i) for i in range(1, len(BLOCKS[self.block]) + 1) for kind in order.split()]
        last = len(steps) - moved
        h = source = x
        # The shortcut reads the input of the first convolution in the first unit of the network and, with bottlenecks,
        # in the first unit of every stage, where the shortcut is a convolution.
        activated = unit.number == 1 and (unit.stage == 1 or self.block == "bottleneck")
        for kind, i in steps[:last]:
            if activated and (kind, i) == ("conv", 1):
                source = h
            h = self._branch_layer(net, h, unit, kind, i)
        h = self._sum(net, h, source, unit)
        for kind, i in steps[last:]:
            h = self._branch_layer(net, h, unit, kind, i)
        return h

    def _branch_layer(self, net: NetworkBuilder, x: Tensor, unit: Unit, kind: str, i: int) -> Tensor:
        """Add the layer of a kind that belongs to the i-th convolution of a unit, counted from 1."""
        name = f"{unit.name}_{kind}{i}"
        if kind != "conv":
            return self.activate(net, x, kind, name)
        multiple, kernel = BLOCKS[self.block][i - 1]
        return convolve(net, x, multiple * unit.width, kernel=kernel, stride=unit.stride if i == 1 else 1, name=name)

    def _sum(self, net: NetworkBuilder, branch: Tensor, x: Tensor, unit: Unit) -> Tensor:
        """Add the sum of a branch and the shortcut of x, each times its factor in table 1."""
        channels = net.graph.spec(branch).shape[1]
        shortcut = self._shortcut(net, x, channels, unit)
        if self.shortcut == "dropout":
            shortcut = nn.dropout(net, shortcut, self.shortcut_dropout, name=f"{unit.name}_shortcut_dropout")
        on_shortcut, on_branch = self._factors(net, x, channels, unit)
        shortcut = _times(net, shortcut, on_shortcut, f"{unit.name}_shortcut_scaled")
        branch = _times(net, branch, on_branch, f"{unit.name}_branch_scaled")
        return nn.add(net, branch, shortcut, name=f"{unit.name}_add")

    def _shortcut(self, net: NetworkBuilder, x: Tensor, channels: int, unit: Unit) -> Tensor:
        """Return x if the sum needs no other tensor; otherwise add a shortcut with the shape of the branch's result."""
        grows, name = net.graph.spec(x).shape[1] != channels, f"{unit.name}_shortcut"
        if self.shortcut == "conv1x1" or (grows and self.block == "bottleneck"):
            h = convolve(net, x, channels, kernel=1, stride=unit.stride, name=name)
            return self.activate(net, h, "norm", f"{name}_norm") if self._normalizes_projection() else h
        return nn.zero_padded_shortcut(net, x, channels, stride=unit.stride, name=name) if grows else x

    def _normalizes_projection(self) -> bool:
        """Return whether the branch normalizes its last convolution before the sum; the shortcut then does the same."""
        order, moved = UNITS[self.unit]
        kinds = order.split()
        return "norm" in kinds[kinds.index("conv") : len(kinds) - moved]

    def _factors(self, net: NetworkBuilder, x: Tensor, channels: int, unit: Unit) -> tuple[Factor, Factor]:
        """Return the factors of the shortcut and of the branch; gated shortcuts add the gate."""
        if self.shortcut == "constant":
            return self.shortcut_scale, self.branch_scale
        if "gate_bias" not in SHORTCUTS[self.shortcut]:
            return 1.0, 1.0
        name = f"{unit.name}_gate"
        h = convolve(net, x, channels, kernel=1, stride=unit.stride, bias=self.gate_bias, name=name)
        gate = nn.sigmoid(net, h, name=f"{name}_sigmoid")
        rest = nn.scale(net, gate, -1.0, offset=1.0, name=f"{name}_rest")
        return rest, gate if self.shortcut == "exclusive_gating" else 1.0

    def activate(self, net: NetworkBuilder, x: Tensor, kind: str, name: str) -> Tensor:
        """Add a normalization ("norm") or a ReLU ("relu")."""
        return nn.relu(net, x, name=name) if kind == "relu" else nn.batch_norm(net, x, decay=self.norm_decay, name=name)


def _times(net: NetworkBuilder, x: Tensor, factor: Factor, name: str) -> Tensor:
    """Return x if the factor is 1; otherwise add the product of x and the factor, a number or a tensor like x."""
    if isinstance(factor, Tensor):
        return nn.multiply(net, x, factor, name=name)
    return x if factor == 1.0 else nn.scale(net, x, factor, name=name)


def convolve(
    net: NetworkBuilder, x: Tensor, filters: int, *, kernel: int, name: str, stride: int = 1, bias: float | None = None
) -> Tensor:
    """Add a convolution with padding that keeps the image size at stride 1, and He normal weights (fan-out)."""
    initializer = he_normal(kernel * kernel * filters)
    return nn.conv(
        net, x, filters, kernel, stride=stride, padding=kernel // 2, bias=bias, initializer=initializer, name=name
    )
