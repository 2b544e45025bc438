"""Stochastic gradient descent."""

from dataclasses import dataclass

from runner.engine.graph import Graph
from runner.engine.tensor import Tensor
from runner.engine.variables import Variable, Variables
from runner.optimizers.base import NewValues, Optimizer, Rule, descend


@dataclass
class Sgd(Optimizer):
    """w <- w - lr * (g + weight_decay * w)."""

    name: str = "sgd"

    def rule(self, graph: Graph, variables: Variables, learning_rate: Tensor, step: Tensor) -> Rule:
        """Return the rule; there is no state."""

        def updated(variable: Variable, gradient: Tensor) -> NewValues:
            direction = self.with_decay(graph, variable, gradient)
            return [(variable, descend(graph, variable, direction, learning_rate))]

        return updated
