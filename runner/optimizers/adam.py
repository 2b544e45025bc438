"""Adam (Kingma and Ba 2015)."""

import math
from dataclasses import dataclass

from runner.engine.graph import Graph
from runner.engine.tensor import Tensor
from runner.engine.variables import Variable, Variables
from runner.optimizers.base import NewValues, Optimizer, Rule, descend, require, require_decay_rate
from runner.optimizers.moments import Moments


@dataclass
class Adam(Optimizer):
    """w <- w - lr * m_hat / (sqrt(v_hat) + epsilon), algorithm 1 of Kingma and Ba 2015.

    Weight decay is an L2 penalty: weight_decay * w is added to the gradient before the moments, and so is
    divided by sqrt(v_hat) as well; :class:`~runner.optimizers.adamw.AdamW` keeps it apart.

    beta1, beta2: weights of the past in the averages of g and of g ** 2. epsilon: keeps the division finite.
    Slots: first_moment, second_moment.
    """

    name: str = "adam"
    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        require_decay_rate("beta1", self.beta1)
        require_decay_rate("beta2", self.beta2)
        require(0.0 < self.epsilon < math.inf, "epsilon", self.epsilon, "a finite number above 0")

    def rule(self, graph: Graph, variables: Variables, learning_rate: Tensor, step: Tensor) -> Rule:
        """Return the rule, with the bias corrections of this step added."""
        moments = self.moments(graph, variables, learning_rate, step)

        def updated(variable: Variable, gradient: Tensor) -> NewValues:
            penalised = self.with_decay(graph, variable, gradient)
            direction, slots = moments.direction(variable, penalised)
            return [*slots, (variable, descend(graph, variable, direction, learning_rate))]

        return updated

    def moments(self, graph: Graph, variables: Variables, learning_rate: Tensor, step: Tensor) -> Moments:
        """Add the bias corrections of this step, in the dtype of ``learning_rate``."""
        with graph.name_scope("moments"):
            return Moments.at_step(
                graph,
                variables,
                beta1=self.beta1,
                beta2=self.beta2,
                epsilon=self.epsilon,
                step=step,
                dtype=graph.spec(learning_rate).dtype,
            )
