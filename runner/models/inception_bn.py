"""Inception-BN, GoogLeNet with batch normalization (Ioffe and Szegedy 2015, figure 5), as trained in AdaBN."""

from dataclasses import dataclass

from runner import nn
from runner.bounds import Rate
from runner.engine.graph import NetworkBuilder, Tensor
from runner.models.base import Model


@dataclass(frozen=True)
class Module:
    """Numbers of filters of an Inception module.

    one: of the 1x1 convolution. three: of the 1x1 reduction and the 3x3 convolution. double: of the 1x1 reduction and
    of both 3x3 convolutions after it. project: of the 1x1 convolution after pooling. In a module that halves the image,
    one and project are 0: the module has no 1x1 branch, and the result of its pooling is not projected.
    """

    one: int
    three: tuple[int, int]
    double: tuple[int, int]
    project: int
    pool: str = "avg"


MODULES: dict[str, Module] = {
    "3a": Module(64, (64, 64), (64, 96), 32),
    "3b": Module(64, (64, 96), (64, 96), 64),
    "3c": Module(0, (128, 160), (64, 96), 0, "max"),
    "4a": Module(224, (64, 96), (96, 128), 128),
    "4b": Module(192, (96, 128), (96, 128), 128),
    "4c": Module(160, (128, 160), (128, 160), 128),
    "4d": Module(96, (128, 192), (160, 192), 128),
    "4e": Module(0, (128, 192), (192, 256), 0, "max"),
    "5a": Module(352, (192, 320), (160, 224), 128),
    "5b": Module(352, (192, 320), (192, 224), 128, "max"),
}


@dataclass
class InceptionBn(Model):
    """Inception-BN: three convolutions, ten Inception modules, global average pooling and one dense layer.

    11,285,224 parameters for 3x224x224 images of 1000 classes; other image sizes work too. Batch normalization and a
    ReLU follow each convolution, which has no bias. The first convolution is not separable. Max pooling with stride 2
    rounds sizes up.

    norm_decay: decay of the moving averages used in evaluation.
    """

    name: str = "inception_bn"
    norm_decay: Rate = 0.9

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add layers conv1, ... pool2, the layers of modules 3a, ... 5b, pool5 and fc; return the logits."""
        h = self._conv(net, x, 64, kernel=7, stride=2, name="conv1")
        h = nn.max_pool(net, h, window=3, stride=2, ceil=True, name="pool1")
        h = self._conv(net, h, 64, kernel=1, name="conv2_reduce")
        h = self._conv(net, h, 192, kernel=3, name="conv2")
        h = nn.max_pool(net, h, window=3, stride=2, ceil=True, name="pool2")
        for name, module in MODULES.items():
            h = self._module(net, h, module, f"inception_{name}")
        h = nn.global_avg_pool(net, h, name="pool5")
        return nn.dense(net, h, outputs, name="fc")

    def _module(self, net: NetworkBuilder, x: Tensor, module: Module, name: str) -> Tensor:
        """Add one Inception module, whose branches are concatenated in the order of the fields of :class:`Module`."""
        stride = 1 if module.one else 2
        branches = [self._conv(net, x, module.one, kernel=1, name=f"{name}_1x1")] if module.one else []
        h = self._conv(net, x, module.three[0], kernel=1, name=f"{name}_3x3_reduce")
        branches.append(self._conv(net, h, module.three[1], kernel=3, stride=stride, name=f"{name}_3x3"))
        h = self._conv(net, x, module.double[0], kernel=1, name=f"{name}_double_3x3_reduce")
        h = self._conv(net, h, module.double[1], kernel=3, name=f"{name}_double_3x3_1")
        branches.append(self._conv(net, h, module.double[1], kernel=3, stride=stride, name=f"{name}_double_3x3_2"))
        pool = nn.avg_pool if module.pool == "avg" else nn.max_pool
        h = pool(net, x, window=3, stride=stride, padding=1, name=f"{name}_pool")
        if module.project:
            h = self._conv(net, h, module.project, kernel=1, name=f"{name}_pool_project")
        return nn.concat(net, [*branches, h], name=f"{name}_concat")

    def _conv(self, net: NetworkBuilder, x: Tensor, filters: int, *, kernel: int, name: str, stride: int = 1) -> Tensor:
        """Add a convolution, padded so that stride 1 keeps the image size, its normalization and its ReLU."""
        h = nn.conv(net, x, filters, kernel, stride=stride, padding=kernel // 2, bias=None, name=name)
        h = nn.batch_norm(net, h, decay=self.norm_decay, name=f"{name}_norm")
        return nn.relu(net, h, name=f"{name}_relu")
