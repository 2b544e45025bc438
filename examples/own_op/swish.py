"""A custom op: swish, with its gradient and kernel, a layer that adds the op, and a model to try it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner import nn
from runner.bounds import Count
from runner.engine.graph import Expr, NetworkBuilder, OpDef, Tensor, apply, ops
from runner.engine.graph.ops.common import elementwise_gradient, input_flops, like_input
from runner.kernels.functions import function_kernel
from runner.models.base import Model
from runner.plugin import Plugin


def swish(x: NDArray[Any]) -> NDArray[Any]:
    """Return x / (1 + e ** -x), in the shape and dtype of x (Ramachandran et al. 2017). This function is the kernel."""
    decay = np.exp(-np.abs(x))  # never overflows, unlike exp(-x)
    y: NDArray[Any] = x * np.where(x >= 0, 1, decay) / (1 + decay)
    return y


def gradient(dy: Expr, y: Expr, x: Expr) -> Expr:
    """Return dx = dy * (s + y * (1 - s)) for s = sigmoid(x) and y = x * s."""
    s = apply(ops.sigmoid, x)
    return dy * (s + y * (1.0 - s))


SWISH = OpDef(
    "swish",
    infer=like_input(),  # one float input; the output has its shape and dtype
    gradient=elementwise_gradient(gradient),
    arity=1,
    flops=input_flops(5),
)


def swish_layer(net: NetworkBuilder, x: Tensor, *, name: str) -> Tensor:
    """Add a layer that computes swish(x), for x of any shape."""
    with net.layer(name, "activation"):
        return net.output(net.graph.add("swish", [x])[0])


@dataclass
class SwishMlp(Model):
    """Dense layers with swish on the flattened image, and a dense output layer. hidden: units of each hidden layer."""

    name: str = "swish_mlp"
    hidden: list[Count] = field(default_factory=lambda: [64])

    def forward(self, net: NetworkBuilder, x: Tensor, classes: int) -> Tensor:
        """Add layers flatten, fc1, swish1, ... and return the logits of the last dense layer."""
        h = nn.flatten(net, x, name="flatten")
        for i, units in enumerate(self.hidden, start=1):
            h = nn.dense(net, h, units, name=f"fc{i}")
            h = swish_layer(net, h, name=f"swish{i}")
        return nn.dense(net, h, classes, name=f"fc{len(self.hidden) + 1}")


plugin = Plugin(models={"swish_mlp": SwishMlp}, ops=[SWISH], kernels=[function_kernel("swish", swish)])
