"""Momentum with the learning rate outside the accumulator, as the Inception v3 guide states it."""

from dataclasses import dataclass

from runner.engine import ops
from runner.engine.graph import Graph
from runner.engine.tensor import Tensor
from runner.engine.variables import Variable, Variables
from runner.optimizers.base import NewValues, Optimizer, Rule, descend, require_decay_rate


@dataclass
class HeavyBall(Optimizer):
    """z <- momentum * z + g + weight_decay * w;  w <- w - lr * z.

    The form of Polyak 1964 that the Inception v3 guide, TensorFlow and PyTorch use. The accumulator
    remembers bare gradients: a change of the learning rate acts at once on all of them. That is where it
    differs from :class:`~runner.optimizers.momentum.Momentum`; at a constant rate the two are equal, with v
    = -lr * z.

    Slot: accumulator. It is on another scale than the velocity of the other form, hence the other name: a
    checkpoint of one does not pass for a checkpoint of the other.
    """

    name: str = "heavy_ball"
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        require_decay_rate("momentum", self.momentum)

    def rule(self, graph: Graph, variables: Variables, learning_rate: Tensor, step: Tensor) -> Rule:
        """Return the rule."""

        def updated(variable: Variable, gradient: Tensor) -> NewValues:
            accumulator = variables.slot(variable, "accumulator")
            kept = ops.scale(graph, accumulator.tensor, self.momentum)
            accumulated = ops.add(graph, kept, self.with_decay(graph, variable, gradient))
            return [
                (accumulator, accumulated),
                (variable, descend(graph, variable, accumulated, learning_rate)),
            ]

        return updated
