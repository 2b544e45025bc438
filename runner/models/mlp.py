"""Multi-layer perceptron."""

from dataclasses import dataclass, field

from runner import nn
from runner.engine.network import NetworkBuilder
from runner.engine.tensor import Tensor
from runner.models.base import Model, require_sizes


@dataclass
class Mlp(Model):
    """Dense layers with ReLU over the pixels in a row, and one more for the logits.

    hidden: units of each hidden layer; none leaves logistic regression.
    """

    name: str = "mlp"
    hidden: list[int] = field(default_factory=lambda: [512, 512])

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sizes("hidden", self.hidden)

    def forward(self, net: NetworkBuilder, x: Tensor, classes: int) -> Tensor:
        """Add layers flatten, fc1, relu1, ... and return the logits of the last fc."""
        h = nn.flatten(net, x, name="flatten")
        for i, units in enumerate(self.hidden, start=1):
            h = nn.dense(net, h, units, name=f"fc{i}")
            h = nn.relu(net, h, name=f"relu{i}")
        return nn.dense(net, h, classes, name=f"fc{len(self.hidden) + 1}")
