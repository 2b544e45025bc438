"""Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

from dataclasses import dataclass

from runner.engine.graph import Graph
from runner.engine.tensor import Tensor
from runner.engine.variables import Variable, Variables
from runner.optimizers.adam import Adam
from runner.optimizers.base import NewValues, Rule, descend


@dataclass
class AdamW(Adam):
    """w <- w - lr * (m_hat / (sqrt(v_hat) + epsilon) + weight_decay * w), with moments of the bare gradient.

    Algorithm 2 of Loshchilov and Hutter 2019 with the decay multiplied by the whole learning rate, as in
    PyTorch: their lambda is lr * weight_decay here.
    """

    name: str = "adamw"
    weight_decay: float = 0.01

    def rule(self, graph: Graph, variables: Variables, learning_rate: Tensor, step: Tensor) -> Rule:
        """Return the rule, with the bias corrections of this step added."""
        moments = self.moments(graph, variables, learning_rate, step)

        def updated(variable: Variable, gradient: Tensor) -> NewValues:
            direction, slots = moments.direction(variable, gradient)
            decayed = self.with_decay(graph, variable, direction)
            return [*slots, (variable, descend(graph, variable, decayed, learning_rate))]

        return updated
