"""An optimizer of one's own: Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2)."""

from dataclasses import dataclass

from runner.engine import ops
from runner.engine.graph import Graph
from runner.engine.tensor import Tensor
from runner.engine.variables import Variable, Variables
from runner.optimizers.base import NewValues, Optimizer, Rule, descend, require_decay_rate
from runner.plugin import Plugin


@dataclass
class Lion(Optimizer):
    """w <- w - lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * w);  m <- beta2 * m + (1 - beta2) * g.

    Every weight moves by the same amount, so rates are 3 to 10 times smaller than those of Adam. beta1, beta2: weights
    of the past in the direction and in the average that is kept. Slot: momentum.
    """

    name: str = "lion"
    lr: float = 0.0003
    beta1: float = 0.9
    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        require_decay_rate("beta1", self.beta1)
        require_decay_rate("beta2", self.beta2)

    def rule(self, graph: Graph, variables: Variables, learning_rate: Tensor, step: Tensor) -> Rule:
        """Return the rule."""

        def average(of: Tensor, gradient: Tensor, beta: float) -> Tensor:
            return ops.add(graph, ops.scale(graph, of, beta), ops.scale(graph, gradient, 1.0 - beta))

        def updated(variable: Variable, gradient: Tensor) -> NewValues:
            momentum = variables.slot(variable, "momentum")
            sign = ops.sign(graph, average(momentum.tensor, gradient, self.beta1))
            direction = self.with_decay(graph, variable, sign)
            return [
                (momentum, average(momentum.tensor, gradient, self.beta2)),
                (variable, descend(graph, variable, direction, learning_rate)),
            ]

        return updated


plugin = Plugin(optimizers={"lion": Lion})
