"""Momentum with the learning rate inside the velocity, as Krizhevsky 2014 trains."""

import math
from dataclasses import dataclass

from runner.engine import ops
from runner.engine.graph import Graph
from runner.engine.tensor import Tensor
from runner.engine.variables import Variable, Variables
from runner.optimizers.base import NewValues, Optimizer, Rule, require, require_decay_rate


@dataclass
class Momentum(Optimizer):
    """v <- momentum * v - lr * weight_decay * w - lr * g;  w <- w + v.

    The update rule of Krizhevsky et al. 2012 (section 5) and Krizhevsky 2014. The velocity remembers steps
    already scaled: after a change of the learning rate, earlier gradients still act with the rate of their
    own time, and the change takes effect over about 1 / (1 - momentum) steps.
    :class:`~runner.optimizers.heavy_ball.HeavyBall` scales afterwards; at a constant rate the two are equal,
    with v = -lr * z.

    bias_lr_factor: multiplies the rate of variables named ".../bias"; his released networks use 2. Slot:
    velocity.
    """

    name: str = "momentum"
    momentum: float = 0.9
    bias_lr_factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_decay_rate("momentum", self.momentum)
        positive = 0.0 < self.bias_lr_factor < math.inf
        require(positive, "bias_lr_factor", self.bias_lr_factor, "a finite number above 0")

    def rule(self, graph: Graph, variables: Variables, learning_rate: Tensor, step: Tensor) -> Rule:
        """Return the rule, with the learning rate of biases added beside that of the others."""
        bias_rate = learning_rate
        if self.bias_lr_factor != 1.0:
            bias_rate = ops.scale(graph, learning_rate, self.bias_lr_factor)

        def updated(variable: Variable, gradient: Tensor) -> NewValues:
            velocity = variables.slot(variable, "velocity")
            rate = bias_rate if variable.name.endswith("/bias") else learning_rate
            direction = self.with_decay(graph, variable, gradient)
            kept = ops.scale(graph, velocity.tensor, self.momentum)
            new_velocity = ops.sub(graph, kept, ops.mul(graph, direction, rate))
            return [(velocity, new_velocity), (variable, ops.add(graph, variable.tensor, new_velocity))]

        return updated
