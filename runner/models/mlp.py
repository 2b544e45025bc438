"""Multi-layer perceptron."""

from dataclasses import dataclass, field

from runner import nn
from runner.bounds import Count
from runner.engine.graph import NetworkBuilder, Tensor, he_normal
from runner.engine.graph.initializers import lecun_normal
from runner.errors import require_one_of
from runner.models.base import Model

ACTIVATIONS = {
    "relu": (nn.relu, he_normal),
    "gelu": (nn.gelu, he_normal),
    "sigmoid": (nn.sigmoid, lecun_normal),
    "tanh": (nn.tanh, lecun_normal),
}
"""Value of ``activation`` -> the layer, and the initial weights of the dense layer before it."""


@dataclass
class Mlp(Model):
    """Hidden dense layers with an activation over the flattened image, and a dense layer for the logits.

    hidden: units of each hidden layer. With an empty list there is only the last layer: a logistic regression.
    activation: "relu", "gelu", "sigmoid" or "tanh". The variance of initial weights is 1 / inputs before a sigmoid or
    a tanh, and 2 / inputs elsewhere.
    """

    name: str = "mlp"
    hidden: list[Count] = field(default_factory=lambda: [512, 512])
    activation: str = "relu"

    def __post_init__(self) -> None:
        require_one_of("model.activation", self.activation, ACTIVATIONS)

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add layers flatten, fc1, the activation, such as relu1, ... and return the logits of the last fc."""
        activate, initializer = ACTIVATIONS[self.activation]
        h = nn.flatten(net, x, name="flatten")
        for i, units in enumerate(self.hidden, start=1):
            h = nn.dense(net, h, units, initializer=initializer(net.graph.spec(h).shape[1]), name=f"fc{i}")
            h = activate(net, h, name=f"{self.activation}{i}")
        return nn.dense(net, h, outputs, name=f"fc{len(self.hidden) + 1}")
