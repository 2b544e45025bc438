"""Adagrad (Duchi et al. 2011) as DistBelief's parameter servers apply it."""

from dataclasses import dataclass

from runner.bounds import Positive
from runner.engine.graph import ops
from runner.engine.graph.expression import Expr, apply
from runner.optimizers.base import NewValues, Optimizer, Rule, State


@dataclass
class Adagrad(Optimizer):
    """s <- s + g ** 2;  w <- w - lr * g / sqrt(s), element by element, and no update where s is 0.

    The rate of Dean et al. 2012, section 4.1: gamma / sqrt(sum of the squares of all gradients so far), with gamma = lr
    and nothing added to the root. They find the best lr larger, perhaps by a factor of 10, than the best fixed rate.
    Where s is 0 every gradient so far was 0, or so small that its square is 0; the element keeps its value.

    Weight decay is an L2 penalty: weight_decay * w is added to the gradient first. Slot: squares.
    """

    name: str = "adagrad"
    lr: Positive = 0.05

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        """Return the rule; variables share nothing."""

        def update(w: State, g: Expr) -> NewValues:
            s = w.slot("squares")
            g = self.with_decay(w, g)
            new_s = s + g.square()
            zero, one = new_s.scalar(0.0), new_s.scalar(1.0)
            # Not "above 0": a sum that is NaN must reach the variable, where it is noticed.
            unused = apply(ops.equal, new_s, zero)
            root = apply(ops.select, unused, one, new_s).sqrt()
            direction = apply(ops.select, unused, zero, g) / root
            return [(s, new_s), (w, w - direction * learning_rate)]

        return update
