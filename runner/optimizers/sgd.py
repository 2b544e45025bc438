"""Stochastic gradient descent, plain and with momentum."""

from dataclasses import dataclass
from typing import ClassVar

from runner.bounds import Positive, Rate
from runner.engine.graph import Expr
from runner.optimizers.base import NewValues, Optimizer, Rule, State
from runner.optimizers.parameter_rules import ParameterRule


@dataclass
class Sgd(Optimizer):
    """w <- w - lr * (g + weight_decay * w)."""

    keeps_rows: ClassVar[bool] = True

    name: str = "sgd"

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        def update(w: State, g: Expr) -> NewValues:
            return [(w, w - self.with_decay(w, g) * learning_rate)]

        return update


@dataclass
class Momentum(Optimizer):
    """v <- momentum * v - lr * weight_decay * w - lr * g;  w <- w + v.

    The update rule of Krizhevsky et al. 2012 and Krizhevsky 2014, section 5 of both. Each gradient is multiplied by the
    learning rate of its step before the velocity v accumulates it, so a change of the rate takes effect over about
    1 / (1 - momentum) steps. :class:`HeavyBall` multiplies its accumulator z by the current rate instead. At a constant
    rate the two optimizers are equivalent, with v = -lr * z.

    bias_lr_factor: multiplies the rate of variables named ".../bias" that no rule of ``rules`` matches; Krizhevsky's
    released networks use 2. Slot: velocity.
    """

    name: str = "momentum"
    momentum: Rate = 0.9
    bias_lr_factor: Positive = 1.0

    @property
    def parameter_rules(self) -> list[ParameterRule]:
        """The rules of ``rules``, and the rule that ``bias_lr_factor`` implies."""
        biases = [] if self.bias_lr_factor == 1.0 else [ParameterRule("*/bias", self.bias_lr_factor)]
        return [*super().parameter_rules, *biases]

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        def update(w: State, g: Expr) -> NewValues:
            v = w.slot("velocity")
            g = self.with_decay(w, g)
            new_v = self.momentum * v - g * learning_rate
            return [(v, new_v), (w, w + new_v)]

        return update


@dataclass
class HeavyBall(Optimizer):
    """z <- momentum * z + g + weight_decay * w;  w <- w - lr * z.

    The form of Polyak 1964 that the Inception v3 guide, TensorFlow and PyTorch use. Unlike the velocity of
    :class:`Momentum`, the accumulator holds unscaled gradients, so a change of the rate acts on all of them at once.

    nesterov: if true, w <- w - lr * (g + weight_decay * w + momentum * z) with the new z: Nesterov's accelerated
    gradient (Sutskever et al. 2013, equations 3 and 4), where w stands for the paper's theta + mu v, the point at which
    the gradient is taken; TensorFlow and PyTorch use the same form.

    Slot: accumulator. It is not named "velocity", because its scale differs: a checkpoint of one of the two optimizers
    must not be loaded by the other optimizer.
    """

    name: str = "heavy_ball"
    momentum: Rate = 0.9
    nesterov: bool = False

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        def update(w: State, g: Expr) -> NewValues:
            z = w.slot("accumulator")
            kept = self.momentum * z
            g = self.with_decay(w, g)
            new_z = kept + g
            direction = g + self.momentum * new_z if self.nesterov else new_z
            return [(z, new_z), (w, w - direction * learning_rate)]

        return update
