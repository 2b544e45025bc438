"""A small convolutional network for 32x32 photographs, after VGG (Simonyan and Zisserman 2015)."""

from dataclasses import dataclass, field

from runner import nn
from runner.bounds import Count, Rate
from runner.engine.graph import NetworkBuilder, Tensor
from runner.models.base import Model


@dataclass
class CifarConvNet(Model):
    """Stages of two 3x3 convolutions and one 2x2 max pooling each, then two dense layers.

    551,146 parameters for 3x32x32 images of 10 classes.

    Batch normalization, which replaces the bias, and ReLU follow every convolution and the hidden dense layer; dropout
    follows every stage and the hidden layer. Every stage halves the image, rounded down, so the sides of the image must
    be at least 2 ** stages.

    widths: filters of each stage. units: width of the hidden dense layer. dropout: rate after each stage and before the
    logits. norm_decay: decay of the moving averages used in evaluation.
    """

    name: str = "cifar_convnet"
    widths: list[Count] = field(default_factory=lambda: [32, 64, 128])
    units: Count = 128
    dropout: Rate = 0.25
    norm_decay: Rate = 0.9

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add layers stage1_conv1, stage1_norm1, ... stage1_dropout, ..., fc1, ... fc2; return the logits."""
        h = x
        for i, width in enumerate(self.widths, start=1):
            for j in (1, 2):
                h = nn.conv(net, h, width, kernel=3, padding="same", bias=None, name=f"stage{i}_conv{j}")
                h = nn.batch_norm(net, h, decay=self.norm_decay, name=f"stage{i}_norm{j}")
                h = nn.relu(net, h, name=f"stage{i}_relu{j}")
            h = nn.max_pool(net, h, window=2, name=f"stage{i}_pool")
            h = nn.dropout(net, h, self.dropout, name=f"stage{i}_dropout")
        h = nn.flatten(net, h, name="flatten")
        h = nn.dense(net, h, self.units, bias=None, name="fc1")
        h = nn.batch_norm(net, h, decay=self.norm_decay, name="fc1_norm")
        h = nn.relu(net, h, name="fc1_relu")
        h = nn.dropout(net, h, self.dropout, name="fc1_dropout")
        return nn.dense(net, h, outputs, name="fc2")
