"""GoogLeNet, the first Inception network (Szegedy et al. 2015, "Going deeper with convolutions", table 1)."""

from dataclasses import dataclass

from runner import nn
from runner.bounds import NonNegative, Rate
from runner.engine.graph import NetworkBuilder, Tensor
from runner.models.base import Model


@dataclass(frozen=True)
class Module:
    """Numbers of filters of an Inception module. three, five: of the 1x1 reduction and the 3x3 or 5x5 convolution."""

    one: int
    three: tuple[int, int]
    five: tuple[int, int]
    pool: int


MODULES: dict[str, Module] = {
    "3a": Module(64, (96, 128), (16, 32), 32),
    "3b": Module(128, (128, 192), (32, 96), 64),
    "4a": Module(192, (96, 208), (16, 48), 64),
    "4b": Module(160, (112, 224), (24, 64), 64),
    "4c": Module(128, (128, 256), (24, 64), 64),
    "4d": Module(112, (144, 288), (32, 64), 64),
    "4e": Module(256, (160, 320), (32, 128), 128),
    "5a": Module(256, (160, 320), (32, 128), 128),
    "5b": Module(384, (192, 384), (48, 128), 128),
}
"""Name of a module in the paper -> the module. Max pooling precedes the first module of each stage: 3a, 4a and 5a."""

AUXILIARY = ("4a", "4d")
"""The modules whose results the auxiliary heads read."""


@dataclass
class GoogLeNet(Model):
    """GoogLeNet: three convolutions, nine Inception modules, global average pooling and one dense layer.

    6,998,552 parameters and 1,582,671,872 multiply-adds for 3x224x224 images of 1000 classes, and 13,378,280 parameters
    with auxiliary heads; other image sizes work too. Max pooling with stride 2 rounds sizes up.

    dropout: rate before the logits. lrn: whether local response normalization over 5 channels (Krizhevsky et al. 2012)
    follows pool1 and conv2. auxiliary_weight: weight of the losses of the two auxiliary heads, which read modules 4a
    and 4d; 0 for no heads, 0.3 in the paper (section 5).
    """

    name: str = "googlenet"
    dropout: Rate = 0.4
    lrn: bool = True
    auxiliary_weight: NonNegative = 0.0

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add layers conv1, ... pool2, the layers of modules 3a, ... 5b, pool5, dropout and fc; return the logits."""
        h = _conv(net, x, 64, kernel=7, stride=2, name="conv1")
        h = nn.max_pool(net, h, window=3, stride=2, ceil=True, name="pool1")
        h = self._normalize(net, h, name="norm1")
        h = _conv(net, h, 64, kernel=1, name="conv2_reduce")
        h = _conv(net, h, 192, kernel=3, name="conv2")
        h = self._normalize(net, h, name="norm2")
        for name, module in MODULES.items():
            if name.endswith("a"):
                h = nn.max_pool(net, h, window=3, stride=2, ceil=True, name=f"pool{int(name[0]) - 1}")
            h = _inception(net, h, module, f"inception_{name}")
            if self.auxiliary_weight and name in AUXILIARY:
                head = _auxiliary_head(net, h, outputs, f"aux_{name}")
                net.auxiliary.append((head, self.auxiliary_weight))
        h = nn.global_avg_pool(net, h, name="pool5")
        h = nn.dropout(net, h, self.dropout, name="dropout")
        return nn.dense(net, h, outputs, name="fc")

    def _normalize(self, net: NetworkBuilder, x: Tensor, name: str) -> Tensor:
        return nn.local_response_normalization(net, x, name=name) if self.lrn else x


def _inception(net: NetworkBuilder, x: Tensor, module: Module, name: str) -> Tensor:
    """Add one Inception module with dimension reductions (figure 2b), which keeps the image size."""
    one = _conv(net, x, module.one, kernel=1, name=f"{name}_1x1")
    three = _conv(net, x, module.three[0], kernel=1, name=f"{name}_3x3_reduce")
    three = _conv(net, three, module.three[1], kernel=3, name=f"{name}_3x3")
    five = _conv(net, x, module.five[0], kernel=1, name=f"{name}_5x5_reduce")
    five = _conv(net, five, module.five[1], kernel=5, name=f"{name}_5x5")
    pool = nn.max_pool(net, x, window=3, stride=1, padding=1, name=f"{name}_pool")
    pool = _conv(net, pool, module.pool, kernel=1, name=f"{name}_pool_project")
    return nn.concat(net, [one, three, five, pool], name=f"{name}_concat")


def _auxiliary_head(net: NetworkBuilder, x: Tensor, outputs: int, name: str) -> Tensor:
    """Add the layers of an auxiliary head (section 5) and return its logits."""
    h = nn.avg_pool(net, x, window=5, stride=3, name=f"{name}_pool")
    h = _conv(net, h, 128, kernel=1, name=f"{name}_conv")
    h = nn.flatten(net, h, name=f"{name}_flatten")
    h = nn.dense(net, h, 1024, name=f"{name}_fc1")
    h = nn.relu(net, h, name=f"{name}_fc1_relu")
    h = nn.dropout(net, h, 0.7, name=f"{name}_dropout")
    return nn.dense(net, h, outputs, name=f"{name}_fc2")


def _conv(net: NetworkBuilder, x: Tensor, filters: int, *, kernel: int, name: str, stride: int = 1) -> Tensor:
    """Add a convolution, padded so that stride 1 keeps the image size, and its ReLU."""
    h = nn.conv(net, x, filters, kernel, stride=stride, padding=kernel // 2, name=name)
    return nn.relu(net, h, name=f"{name}_relu")
