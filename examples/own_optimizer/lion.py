"""A custom optimizer: Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2)."""

from dataclasses import dataclass

from runner.bounds import Positive, Rate
from runner.engine.graph import Expr
from runner.optimizers.base import NewValues, Optimizer, Rule, State
from runner.plugin import Plugin


@dataclass
class Lion(Optimizer):
    """w <- w - lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * w);  m <- beta2 * m + (1 - beta2) * g.

    Every weight moves by the same amount, so use a learning rate 3 to 10 times smaller than with Adam. beta1: weight of
    m in the step's direction. beta2: decay of m. Slot: momentum.
    """

    name: str = "lion"
    lr: Positive = 0.0003
    beta1: Rate = 0.9
    beta2: Rate = 0.99

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        """Return the update rule as an expression."""

        def update(w: State, g: Expr) -> NewValues:
            m = w.slot("momentum")
            sign = (self.beta1 * m + (1.0 - self.beta1) * g).sign()
            direction = self.with_decay(w, sign)
            new_m = self.beta2 * m + (1.0 - self.beta2) * g
            return [(m, new_m), (w, w - direction * learning_rate)]

        return update


plugin = Plugin(optimizers={"lion": Lion})
