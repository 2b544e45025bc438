"""Residual networks in PyTorch, written from He et al. 2015, table 1, and He et al. 2016, figure 4 and table 1."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's documentation uses this name

from runner.models import ResNetCifar, ResNetImageNet
from tests.models.torch_inception import norm

Tensor = torch.Tensor


@dataclass
class TorchResNet:
    """The network of ``model``.

    state: ``state_dict``; without running statistics, the network is in training mode. masks: layer -> mask of its
    dropout.
    """

    model: ResNetCifar | ResNetImageNet
    state: Mapping[str, Tensor]
    masks: Mapping[str, Tensor] = field(default_factory=dict)

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(x), labels)

    def logits(self, x: Tensor) -> Tensor:
        last = {"basic": 2, "bottleneck": 3, "single": 1}[self.model.block]
        unit = self.model.unit
        if isinstance(self.model, ResNetImageNet):
            units = [2, 2, 2, 2] if self.model.depth == 18 else [3, 4, 6, 3]
            h = F.max_pool2d(self.norm("norm1", self.conv("conv1", x, 2)).relu(), 3, 2, 1)
        else:
            units = [(self.model.depth - 2) // (3 * last)] * 3
            h = self.conv("conv1", x)
            if unit != "preactivation":
                h = self.norm("norm1", h)
            if unit in ("original", "bn_after_addition", "relu_before_addition"):
                h = h.relu()
        for stage, count in enumerate(units, start=1):
            for number in range(1, count + 1):
                h = self.unit(h, stage, number, last)
        if unit == "preactivation":
            h = self.norm("last_norm", h)
        if unit in ("relu_only_preactivation", "preactivation"):
            h = h.relu()
        return F.linear(h.mean((2, 3)), self.state["fc.weight"], self.state["fc.bias"])

    def unit(self, x: Tensor, stage: int, number: int, last: int) -> Tensor:
        """Return the result of a unit whose branch has ``last`` convolutions."""
        name, stride = f"stage{stage}_unit{number}", 2 if stage > 1 and number == 1 else 1
        shares_activation = number == 1 and (stage == 1 or self.model.block == "bottleneck")

        def conv(i: int, h: Tensor) -> Tensor:
            return self.conv(f"{name}_conv{i}", h, stride if i == 1 else 1)

        def norm(i: int, h: Tensor) -> Tensor:
            return self.norm(f"{name}_norm{i}", h)

        h = source = x
        match self.model.unit:
            case "original":
                for i in range(1, last):
                    h = norm(i, conv(i, h)).relu()
                return self.sum(source, norm(last, conv(last, h)), name, stride).relu()
            case "bn_after_addition":
                for i in range(1, last):
                    h = norm(i, conv(i, h)).relu()
                return norm(last, self.sum(source, conv(last, h), name, stride)).relu()
            case "relu_before_addition":
                for i in range(1, last + 1):
                    h = norm(i, conv(i, h)).relu()
            case "relu_only_preactivation":
                source = x.relu() if shares_activation else x
                for i in range(1, last + 1):
                    h = norm(i, conv(i, h.relu()))
            case "preactivation":
                activated = norm(1, x).relu()
                source = activated if shares_activation else x
                h = conv(1, activated)
                for i in range(2, last + 1):
                    h = conv(i, norm(i, h).relu())
        return self.sum(source, h, name, stride)

    def sum(self, x: Tensor, branch: Tensor, name: str, stride: int) -> Tensor:
        """Return the sum of a branch and the shortcut of x, as in table 1."""
        channels = branch.shape[1]
        shortcut = x
        if self.model.shortcut == "conv1x1" or (self.model.block == "bottleneck" and x.shape[1] != channels):
            shortcut = self.conv(f"{name}_shortcut", x, stride)
            if self.model.unit not in ("bn_after_addition", "preactivation"):
                shortcut = self.norm(f"{name}_shortcut_norm", shortcut)
        elif x.shape[1] != channels:
            shortcut = F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, 0, channels - x.shape[1]))
        match self.model.shortcut:
            case "constant":
                return self.model.shortcut_scale * shortcut + self.model.branch_scale * branch
            case "exclusive_gating":
                g = self.gate(x, name, stride)
                return (1 - g) * shortcut + g * branch
            case "shortcut_only_gating":
                return (1 - self.gate(x, name, stride)) * shortcut + branch
            case "dropout":
                return shortcut * self.masks[f"{name}_shortcut_dropout"] + branch
        return shortcut + branch

    def gate(self, x: Tensor, name: str, stride: int) -> Tensor:
        return torch.sigmoid(F.conv2d(x, self.state[f"{name}_gate.weight"], self.state[f"{name}_gate.bias"], stride))

    def conv(self, name: str, x: Tensor, stride: int = 1) -> Tensor:
        weights = self.state[f"{name}.weight"]
        return F.conv2d(x, weights, None, stride, weights.shape[-1] // 2)

    def norm(self, name: str, x: Tensor) -> Tensor:
        return norm(self.state, name, x)
