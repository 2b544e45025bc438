"""Multi-layer perceptron."""

from dataclasses import dataclass, field

from runner import nn
from runner.bounds import Count
from runner.engine.graph.network import NetworkBuilder
from runner.engine.graph.tensor import Tensor
from runner.models.base import Model


@dataclass
class Mlp(Model):
    """Hidden dense layers with ReLU over the flattened image, and a dense layer for the logits.

    hidden: units of each hidden layer. With an empty list there is only the last layer: a logistic regression.
    """

    name: str = "mlp"
    hidden: list[Count] = field(default_factory=lambda: [512, 512])

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add layers flatten, fc1, relu1, ... and return the logits of the last fc."""
        h = nn.flatten(net, x, name="flatten")
        for i, units in enumerate(self.hidden, start=1):
            h = nn.dense(net, h, units, name=f"fc{i}")
            h = nn.relu(net, h, name=f"relu{i}")
        return nn.dense(net, h, outputs, name=f"fc{len(self.hidden) + 1}")
