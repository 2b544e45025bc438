"""The stock networks in PyTorch, as functions of a ``state_dict``: an oracle for the names and layouts of weights."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's documentation uses this name

from runner.models import ResNetCifar, ResNetImageNet
from tests.models.torch_inception import TorchInceptionV3, norm
from tests.models.torch_resnet import TorchResNet

State = Mapping[str, Any]
Tensor = torch.Tensor


def conv(s: State, name: str, x: Tensor, stride: int = 1, padding: int = 0, groups: int = 1) -> Tensor:
    return F.conv2d(x, s[f"{name}.weight"], s.get(f"{name}.bias"), stride, padding, groups=groups)


def dense(s: State, name: str, x: Tensor) -> Tensor:
    return F.linear(x, s[f"{name}.weight"], s[f"{name}.bias"])


def pool(x: Tensor, ceil: bool = False, padding: int = 0) -> Tensor:
    return F.max_pool2d(x, 3, 2, padding, ceil_mode=ceil)


def last_layers(s: State, x: Tensor, *names: str) -> Tensor:
    *hidden, last = names
    x = x.flatten(1)
    for name in hidden:
        x = dense(s, name, x).relu()
    return dense(s, last, x)


def mlp(s: State, x: Tensor) -> Tensor:
    return last_layers(s, x, "fc1", "fc2", "fc3")


def distbelief_speech(s: State, x: Tensor) -> Tensor:
    x = x.flatten(1)
    for number in range(1, 5):
        x = dense(s, f"fc{number}", x).sigmoid()
    return dense(s, "fc5", x)


def lenet(s: State, x: Tensor) -> Tensor:
    h = F.max_pool2d(conv(s, "conv1", x), 2)
    h = F.max_pool2d(conv(s, "conv2", h), 2)
    return last_layers(s, h, "fc1", "fc2")


def cifar_convnet(s: State, x: Tensor) -> Tensor:
    for stage in (1, 2, 3):
        for number in (1, 2):
            name = f"stage{stage}_{{}}{number}".format
            x = norm(s, name("norm"), conv(s, name("conv"), x, 1, 1)).relu()
        x = F.max_pool2d(x, 2)
    h = F.linear(x.flatten(1), s["fc1.weight"])
    return dense(s, "fc2", norm(s, "fc1_norm", h).relu())


def cifar_alexnet(s: State, x: Tensor) -> Tensor:
    for number, (kernel, pooled) in enumerate(((5, True), (5, True), (3, False), (3, False), (3, True)), start=1):
        x = conv(s, f"conv{number}", x, 1, kernel // 2).relu()
        x = pool(x, padding=1) if pooled else x
    return last_layers(s, x, "fc6", "fc7", "fc8")


def alexnet_2012(s: State, x: Tensor) -> Tensor:
    x = F.pad(x, (0, -(x.shape[3] - 11) % 4, 0, -(x.shape[2] - 11) % 4))
    h = pool(F.local_response_norm(conv(s, "conv1", x, 4).relu(), 5, 5e-4, 0.75, 2.0))
    h = pool(F.local_response_norm(conv(s, "conv2", h, 1, 2, groups=2).relu(), 5, 5e-4, 0.75, 2.0))
    h = conv(s, "conv3", h, 1, 1).relu()
    h = conv(s, "conv5", conv(s, "conv4", h, 1, 1, groups=2).relu(), 1, 1, groups=2).relu()
    return last_layers(s, pool(h), "fc6", "fc7", "fc8")


def alexnet(s: State, x: Tensor) -> Tensor:
    # crop=pad and alpha divided by the size of the window, as PyTorch does; k=2 as in the paper.
    h = pool(F.local_response_norm(conv(s, "conv1", x, 4, 2), 5, 1e-4, 0.75, 2.0).relu())
    h = pool(F.local_response_norm(conv(s, "conv2", h, 1, 2).relu(), 5, 1e-4, 0.75, 2.0))
    for name in ("conv3", "conv4", "conv5"):
        h = conv(s, name, h, 1, 1).relu()
    return last_layers(s, pool(h), "fc6", "fc7", "fc8")


def vgg_a(s: State, x: Tensor) -> Tensor:
    return vgg(s, x, (1, 1, 2, 2, 2))


def vgg_d(s: State, x: Tensor) -> Tensor:
    return vgg(s, x, (2, 2, 3, 3, 3))


def vgg(s: State, x: Tensor, stages: Sequence[int]) -> Tensor:
    for stage, convolutions in enumerate(stages, start=1):
        for number in range(1, convolutions + 1):
            x = conv(s, f"stage{stage}_conv{number}", x, 1, 1).relu()
        x = F.max_pool2d(x, 2)
    return last_layers(s, x, "fc1", "fc2", "fc3")


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


def inception_bn(s: State, x: Tensor) -> Tensor:
    def unit(name: str, h: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
        return norm(s, f"{name}_norm", conv(s, name, h, stride, padding)).relu()

    def inception(h: Tensor, name: str, stride: int) -> Tensor:
        three = unit(f"{name}_3x3", unit(f"{name}_3x3_reduce", h), stride, 1)
        double = unit(f"{name}_double_3x3_1", unit(f"{name}_double_3x3_reduce", h), 1, 1)
        double = unit(f"{name}_double_3x3_2", double, stride, 1)
        if stride == 2:
            return torch.cat([three, double, pool(h, padding=1)], 1)
        pooled = F.max_pool2d(h, 3, 1, 1) if name.endswith("5b") else F.avg_pool2d(h, 3, 1, 1, count_include_pad=False)
        return torch.cat([unit(f"{name}_1x1", h), three, double, unit(f"{name}_pool_project", pooled)], 1)

    h = pool(unit("conv1", x, 2, 3), ceil=True)
    h = pool(unit("conv2", unit("conv2_reduce", h), 1, 1), ceil=True)
    for module in ("3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        h = inception(h, f"inception_{module}", 2 if module in ("3c", "4e") else 1)
    return dense(s, "fc", h.mean((2, 3)))


def inception_v3(s: State, x: Tensor) -> Tensor:
    return TorchInceptionV3(s).logits(x)[0]


def resnet_cifar(s: State, x: Tensor) -> Tensor:
    return TorchResNet(ResNetCifar(), s).logits(x)


def resnet_imagenet(s: State, x: Tensor) -> Tensor:
    return TorchResNet(ResNetImageNet(), s).logits(x)


NETWORKS: dict[str, Callable[[State, Tensor], Tensor]] = {
    function.__name__: function
    for function in (
        *(mlp, lenet, cifar_convnet, cifar_alexnet, resnet_cifar, googlenet, alexnet, vgg_a, vgg_d, alexnet_2012),
        *(inception_bn, inception_v3, resnet_imagenet, distbelief_speech),
    )
}
"""Name of a model -> its logits for normalised images, given the weights."""
