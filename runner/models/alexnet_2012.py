"""AlexNet with two towers (Krizhevsky, Sutskever and Hinton 2012, section 3.5)."""

from dataclasses import dataclass

from runner import nn
from runner.bounds import Count, Rate
from runner.engine.graph import NetworkBuilder, Normal, Tensor
from runner.models.base import Model


@dataclass(frozen=True)
class Convolution:
    """A convolution. groups: 2 if each tower reads only its own channels. bias: the initial bias."""

    filters: int
    kernel: int
    groups: int
    bias: float


CONVOLUTIONS = (
    Convolution(96, kernel=11, groups=1, bias=0.0),
    Convolution(256, kernel=5, groups=2, bias=1.0),
    Convolution(384, kernel=3, groups=1, bias=0.0),
    Convolution(384, kernel=3, groups=2, bias=1.0),
    Convolution(256, kernel=3, groups=2, bias=1.0),
)
NORMALIZED, POOLED = (1, 2), (1, 2, 5)
"""Numbers, from 1, of the convolutions that are followed by local response normalization and by 3x3 max pooling."""


@dataclass
class AlexNet2012(Model):
    """AlexNet of 2012: the convolutions form two towers, which are connected in the third convolution.

    60,965,224 parameters and 724,406,816 multiply-adds for 3x224x224 images of 1000 classes; other image sizes work
    too. The last windows of conv1 reach beyond the image, which gives 55x55 windows. The towers are the two groups of
    channels of the convolutions, in one network.

    units: width of each hidden dense layer. dropout: rate after these layers.
    """

    name: str = "alexnet_2012"
    units: Count = 4096
    dropout: Rate = 0.5

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add layers conv1, relu1, norm1, pool1, conv2, ... pool5, flatten, fc6, ... fc8; return the logits."""
        h, small = x, Normal(0.01)
        for i, each in enumerate(CONVOLUTIONS, start=1):
            first = i == 1
            h = nn.conv(
                net,
                h,
                each.filters,
                each.kernel,
                stride=4 if first else 1,
                padding="valid" if first else each.kernel // 2,
                ceil=first,
                groups=each.groups,
                bias=each.bias,
                initializer=small,
                name=f"conv{i}",
            )
            h = nn.relu(net, h, name=f"relu{i}")
            if i in NORMALIZED:
                h = nn.local_response_normalization(net, h, name=f"norm{i}")
            if i in POOLED:
                h = nn.max_pool(net, h, window=3, stride=2, name=f"pool{i}")
        h = nn.flatten(net, h, name="flatten")
        for i in (6, 7):
            h = nn.dense(net, h, self.units, bias=1.0, initializer=small, name=f"fc{i}")
            h = nn.relu(net, h, name=f"relu{i}")
            h = nn.dropout(net, h, self.dropout, name=f"dropout{i}")
        return nn.dense(net, h, outputs, initializer=small, name="fc8")
