"""Stochastic gradient descent."""

from dataclasses import dataclass

from runner.engine.graph.expression import Expr
from runner.optimizers.base import NewValues, Optimizer, Rule, State


@dataclass
class Sgd(Optimizer):
    """w <- w - lr * (g + weight_decay * w)."""

    name: str = "sgd"

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        """Return the rule; there are no slots."""

        def update(w: State, g: Expr) -> NewValues:
            return [(w, w - self.with_decay(w, g) * learning_rate)]

        return update
