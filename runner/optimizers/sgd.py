"""Stochastic gradient descent, plain and with momentum."""

from dataclasses import dataclass

from runner.bounds import Positive, Rate
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


@dataclass
class Momentum(Optimizer):
    """v <- momentum * v - lr * weight_decay * w - lr * g;  w <- w + v.

    The update rule of Krizhevsky et al. 2012 (section 5) and Krizhevsky 2014. The velocity v accumulates gradients that
    are already multiplied by the learning rate of their own step, so a change of the rate takes effect over about
    1 / (1 - momentum) steps. :class:`HeavyBall` multiplies its accumulator z by the current rate instead. At a constant
    rate the two optimizers are equivalent, with v = -lr * z.

    bias_lr_factor: multiplies the rate of variables named ".../bias"; Krizhevsky's released networks use 2. Slot:
    velocity.
    """

    name: str = "momentum"
    momentum: Rate = 0.9
    bias_lr_factor: Positive = 1.0

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        """Add the learning rate of biases and return the rule."""
        bias_rate = learning_rate if self.bias_lr_factor == 1.0 else self.bias_lr_factor * learning_rate

        def update(w: State, g: Expr) -> NewValues:
            v = w.slot("velocity")
            rate = bias_rate if w.variable.name.endswith("/bias") else learning_rate
            g = self.with_decay(w, g)
            new_v = self.momentum * v - g * rate
            return [(v, new_v), (w, w + new_v)]

        return update


@dataclass
class HeavyBall(Optimizer):
    """z <- momentum * z + g + weight_decay * w;  w <- w - lr * z.

    The form of Polyak 1964 that the Inception v3 guide, TensorFlow and PyTorch use. Unlike the velocity of
    :class:`Momentum`, the accumulator holds unscaled gradients, so a change of the rate acts on all of them at once.

    Slot: accumulator. It is not named "velocity", because its scale differs: a checkpoint of one of these optimizers
    must not be loaded by the other.
    """

    name: str = "heavy_ball"
    momentum: Rate = 0.9

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        """Return the rule."""

        def update(w: State, g: Expr) -> NewValues:
            z = w.slot("accumulator")
            new_z = self.momentum * z + self.with_decay(w, g)
            return [(z, new_z), (w, w - new_z * learning_rate)]

        return update
