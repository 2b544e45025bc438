"""AlexNet with one tower (Krizhevsky 2014, "One weird trick", after Krizhevsky, Sutskever and Hinton 2012)."""

from dataclasses import dataclass

from runner import nn
from runner.bounds import Count, Positive, Rate
from runner.engine.graph import NetworkBuilder, Normal, Tensor
from runner.errors import require_one_of
from runner.models.base import Model

CROPS: dict[str, tuple[nn.Padding, bool]] = {"ceil": ("valid", True), "pad": (2, False), "valid": ("valid", False)}
"""Value of ``crop`` -> padding of conv1, and whether the number of its windows is rounded up; see :class:`AlexNet`."""

KERNELS = (5, 5, 3, 3, 3)
POOLED = (1, 2, 5)
"""Numbers, from 1, of the convolutions that are followed by max pooling."""


@dataclass
class AlexNet(Model):
    """AlexNet: five convolutions, three of them followed by 3x3 max pooling, and three dense layers.

    61,100,840 parameters and 714,188,480 multiply-adds for 3x224x224 images of 1000 classes. Layers, initial values
    and local response normalization follow cuda-convnet2's configuration for one GPU.

    conv4: filters of the fourth convolution; 384 in the paper's footnote, 256 in all code released by its author.
    units: width of each hidden dense layer. dropout: rate after these layers. lrn: whether local response normalization
    follows conv1 and conv2. lrn_alpha: the factor of the sum of squares over 5 channels. lrn_divide_by_size: whether
    this factor is divided by 5, as in cuda-convnet2 but not in the paper of 2012. crop: the padding of conv1, which has
    55x55 windows for one image size; other sizes work too. "ceil": 224x224, where the last windows reach beyond the
    image (cuda-convnet2); "pad": 224x224, two zeros on every side (Torch); "valid": 227x227, no zeros (TensorFlow).
    """

    name: str = "alexnet"
    conv4: Count = 256
    units: Count = 4096
    dropout: Rate = 0.5
    lrn: bool = True
    lrn_alpha: Positive = 1e-4
    lrn_divide_by_size: bool = True
    crop: str = "ceil"

    def __post_init__(self) -> None:
        require_one_of("model.crop", self.crop, CROPS)

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add layers conv1, norm1, relu1, pool1, conv2, relu2, norm2, pool2, ... pool5, ... fc8; return the logits."""
        padding, ceil = CROPS[self.crop]
        small = Normal(0.01)
        h = nn.conv(net, x, 64, kernel=11, stride=4, padding=padding, ceil=ceil, initializer=small, name="conv1")
        # As in the released code, conv1 is normalized before its ReLU, and conv2 after its ReLU.
        h = self._normalize(net, h, "norm1")
        h = nn.relu(net, h, name="relu1")
        h = nn.max_pool(net, h, window=3, stride=2, name="pool1")
        h = nn.conv(net, h, 192, kernel=5, padding=2, bias=1.0, initializer=small, name="conv2")
        h = nn.relu(net, h, name="relu2")
        h = self._normalize(net, h, "norm2")
        h = nn.max_pool(net, h, window=3, stride=2, name="pool2")
        for i, (filters, bias) in enumerate(((384, 0.0), (self.conv4, 1.0), (256, 1.0)), start=3):
            h = nn.conv(net, h, filters, kernel=3, padding=1, bias=bias, initializer=Normal(0.03), name=f"conv{i}")
            h = nn.relu(net, h, name=f"relu{i}")
        h = nn.max_pool(net, h, window=3, stride=2, name="pool5")
        h = nn.flatten(net, h, name="flatten")
        for i in (6, 7):
            h = nn.dense(net, h, self.units, bias=1.0, initializer=small, name=f"fc{i}")
            h = nn.relu(net, h, name=f"relu{i}")
            h = nn.dropout(net, h, self.dropout, name=f"dropout{i}")
        # With this bias, outputs of logistic units begin near 1 / (1 + exp(7)), about the frequency of 1 class in 1000.
        return nn.dense(net, h, outputs, bias=-7.0, initializer=small, name="fc8")

    def _normalize(self, net: NetworkBuilder, x: Tensor, name: str) -> Tensor:
        if not self.lrn:
            return x
        divided = self.lrn_divide_by_size
        return nn.local_response_normalization(net, x, alpha=self.lrn_alpha, divide_by_size=divided, name=name)
