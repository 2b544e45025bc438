"""The stock networks in PyTorch, as functions of a ``state_dict``: an oracle for the names and layouts of weights."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's documentation uses this name

State = Mapping[str, Any]
Tensor = torch.Tensor


def conv(s: State, name: str, x: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    return F.conv2d(x, s[f"{name}.weight"], s.get(f"{name}.bias"), stride, padding)


def dense(s: State, name: str, x: Tensor) -> Tensor:
    return F.linear(x, s[f"{name}.weight"], s[f"{name}.bias"])


def norm(s: State, name: str, x: Tensor) -> Tensor:
    parts = (s[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
    return F.batch_norm(x, *parts)


def pool(x: Tensor, ceil: bool = False) -> Tensor:
    return F.max_pool2d(x, 3, 2, ceil_mode=ceil)


def mlp(s: State, x: Tensor) -> Tensor:
    return dense(s, "fc3", dense(s, "fc2", dense(s, "fc1", x.flatten(1)).relu()).relu())


def lenet(s: State, x: Tensor) -> Tensor:
    h = F.max_pool2d(conv(s, "conv1", x), 2)
    h = F.max_pool2d(conv(s, "conv2", h), 2)
    return dense(s, "fc2", dense(s, "fc1", h.flatten(1)).relu())


def alexnet(s: State, x: Tensor) -> Tensor:
    # crop=pad and alpha divided by the size of the window, as PyTorch does; k=2 as in the paper.
    h = pool(F.local_response_norm(conv(s, "conv1", x, 4, 2), 5, 1e-4, 0.75, 2.0).relu())
    h = pool(F.local_response_norm(conv(s, "conv2", h, 1, 2).relu(), 5, 1e-4, 0.75, 2.0))
    for name in ("conv3", "conv4", "conv5"):
        h = conv(s, name, h, 1, 1).relu()
    h = pool(h).flatten(1)
    return dense(s, "fc8", dense(s, "fc7", dense(s, "fc6", h).relu()).relu())


def vgg_a(s: State, x: Tensor) -> Tensor:
    for stage, convolutions in enumerate((1, 1, 2, 2, 2), start=1):
        for number in range(1, convolutions + 1):
            x = conv(s, f"stage{stage}_conv{number}", x, 1, 1).relu()
        x = F.max_pool2d(x, 2)
    return dense(s, "fc3", dense(s, "fc2", dense(s, "fc1", x.flatten(1)).relu()).relu())


def googlenet(s: State, x: Tensor) -> Tensor:
    def response(h: Tensor) -> Tensor:
        return F.local_response_norm(h, 5, 5e-4, 0.75, 2.0)  # PyTorch divides alpha by 5

    def inception(h: Tensor, name: str) -> Tensor:
        one = conv(s, f"{name}_1x1", h).relu()
        three = conv(s, f"{name}_3x3", conv(s, f"{name}_3x3_reduce", h).relu(), 1, 1).relu()
        five = conv(s, f"{name}_5x5", conv(s, f"{name}_5x5_reduce", h).relu(), 1, 2).relu()
        pooled = conv(s, f"{name}_pool_project", F.max_pool2d(h, 3, 1, 1)).relu()
        return torch.cat([one, three, five, pooled], 1)

    h = response(pool(conv(s, "conv1", x, 2, 3).relu(), ceil=True))
    h = response(conv(s, "conv2", conv(s, "conv2_reduce", h).relu(), 1, 1).relu())
    for stage, letters in (("3", "ab"), ("4", "abcde"), ("5", "ab")):
        h = pool(h, ceil=True)
        for letter in letters:
            h = inception(h, f"inception_{stage}{letter}")
    return dense(s, "fc", h.mean((2, 3)))


def resnet_cifar(s: State, x: Tensor) -> Tensor:
    """ResNet-20 of basic preactivation units."""
    h = conv(s, "conv1", x, 1, 1)
    for stage in (1, 2, 3):
        for number in (1, 2, 3):
            name, stride = f"stage{stage}_unit{number}", 2 if stage > 1 and number == 1 else 1
            source, h = h, norm(s, f"{name}_norm1", h).relu()
            if (stage, number) == (1, 1):
                source = h
            h = conv(s, f"{name}_conv1", h, stride, 1)
            h = conv(s, f"{name}_conv2", norm(s, f"{name}_norm2", h).relu(), 1, 1)
            if stride == 2:
                source = F.pad(source[:, :, ::2, ::2], (0, 0, 0, 0, 0, h.shape[1] - source.shape[1]))
            h = h + source
    return dense(s, "fc", norm(s, "last_norm", h).relu().mean((2, 3)))


NETWORKS: dict[str, Callable[[State, Tensor], Tensor]] = {
    function.__name__: function for function in (mlp, lenet, alexnet, vgg_a, googlenet, resnet_cifar)
}
"""Name of a model -> its logits for normalised images, given the weights."""
