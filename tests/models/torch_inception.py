"""Inception v3 in PyTorch, written from figures 5 to 7 of Szegedy et al. 2016 and the layers of TensorFlow's code."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's documentation uses this name

Tensor = torch.Tensor


def norm(state: Mapping[str, Tensor], name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
    """Return x normalized with the running statistics or, if ``state`` has none, with the statistics of the batch."""
    mean, variance, gamma, beta = (
        state.get(f"{name}.{part}") for part in ("running_mean", "running_var", "weight", "bias")
    )
    return F.batch_norm(x, mean, variance, gamma, beta, training=mean is None, eps=eps)


@dataclass
class TorchInceptionV3:
    """Inception v3, without dropout.

    state: ``state_dict``; without running statistics, the statistics of the batch are used. auxiliary_weight: weight of
    the second loss.
    """

    state: Mapping[str, Tensor]
    auxiliary_weight: float = 0.0

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        logits, auxiliary = self.logits(x)
        return F.cross_entropy(logits, labels) + self.auxiliary_weight * F.cross_entropy(auxiliary, labels)

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of images x, and those of the auxiliary head."""
        h = self.conv("stem_1", x, 2, "valid")
        h = self.conv("stem_3", self.conv("stem_2", h, 1, "valid"))
        h = self.conv("stem_5", F.max_pool2d(h, 3, 2), 1, "valid")
        h = F.max_pool2d(self.conv("stem_6", h, 1, "valid"), 3, 2)
        for letter in "bcd":
            h = self.module_35(h, f"inception_5{letter}")
        h = self.reduction_35(h, "inception_6a")
        for letter in "bcde":
            h = self.module_17(h, f"inception_6{letter}")
        auxiliary = self.auxiliary(h)
        h = self.reduction_17(h, "inception_7a")
        for letter in "bc":
            h = self.module_8(h, f"inception_7{letter}")
        return self.dense("fc", h.mean((2, 3))), auxiliary

    def auxiliary(self, x: Tensor) -> Tensor:
        h = self.conv("aux_conv1", F.avg_pool2d(x, 5, 3))
        return self.dense("aux_fc", self.conv("aux_conv2", h, 1, "valid").flatten(1))

    def module_35(self, x: Tensor, name: str) -> Tensor:
        one = self.conv(f"{name}_branch1_1", x)
        five = self.conv(f"{name}_branch2_2", self.conv(f"{name}_branch2_1", x))
        three = self.conv(f"{name}_branch3_2", self.conv(f"{name}_branch3_1", x))
        three = self.conv(f"{name}_branch3_3", three)
        return torch.cat([one, five, three, self.pooled(f"{name}_branch4_2", x)], 1)

    def reduction_35(self, x: Tensor, name: str) -> Tensor:
        single = self.conv(f"{name}_branch1_1", x, 2, "valid")
        double = self.conv(f"{name}_branch2_2", self.conv(f"{name}_branch2_1", x))
        double = self.conv(f"{name}_branch2_3", double, 2, "valid")
        return torch.cat([single, double, F.max_pool2d(x, 3, 2)], 1)

    def module_17(self, x: Tensor, name: str) -> Tensor:
        one = self.conv(f"{name}_branch1_1", x)
        seven = self.conv(f"{name}_branch2_2", self.conv(f"{name}_branch2_1", x))
        seven = self.conv(f"{name}_branch2_3", seven)
        twice = x
        for number in range(1, 6):
            twice = self.conv(f"{name}_branch3_{number}", twice)
        return torch.cat([one, seven, twice, self.pooled(f"{name}_branch4_2", x)], 1)

    def reduction_17(self, x: Tensor, name: str) -> Tensor:
        three = self.conv(f"{name}_branch1_2", self.conv(f"{name}_branch1_1", x), 2, "valid")
        seven = x
        for number in range(1, 4):
            seven = self.conv(f"{name}_branch2_{number}", seven)
        seven = self.conv(f"{name}_branch2_4", seven, 2, "valid")
        return torch.cat([three, seven, F.max_pool2d(x, 3, 2)], 1)

    def module_8(self, x: Tensor, name: str) -> Tensor:
        one = self.conv(f"{name}_branch1_1", x)
        short = self.conv(f"{name}_branch2_1", x)
        long = self.conv(f"{name}_branch3_2", self.conv(f"{name}_branch3_1", x))
        short, long = (
            [self.conv(f"{name}_{branch}_{side}", h) for side in ("row", "column")]
            for branch, h in (("branch2_2", short), ("branch3_3", long))
        )
        return torch.cat([one, *short, *long, self.pooled(f"{name}_branch4_2", x)], 1)

    def pooled(self, name: str, x: Tensor) -> Tensor:
        """Return a convolution of average-pooled images."""
        return self.conv(name, F.avg_pool2d(x, 3, 1, 1, count_include_pad=False))

    def conv(self, name: str, x: Tensor, stride: int = 1, padding: str = "same") -> Tensor:
        """Return a convolution, its normalization, and its ReLU."""
        h = F.conv2d(x, self.state[f"{name}.weight"], None, stride, padding)
        return norm(self.state, f"{name}_norm", h, eps=1e-3).relu()

    def dense(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.state[f"{name}.weight"], self.state[f"{name}.bias"])
