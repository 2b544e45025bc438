"""Optimizers with adaptive learning rates: Adagrad, RMSProp, Adam and AdamW."""

import math
from dataclasses import dataclass
from typing import ClassVar

from runner.bounds import NonNegative, Positive, Rate
from runner.engine.graph import Expr, apply, ops
from runner.optimizers.base import NewValues, Optimizer, Rule, State


@dataclass
class Adagrad(Optimizer):
    """s <- s + g ** 2;  w <- w - lr * g / sqrt(s), element by element, and no update where s is 0.

    The rate of each element is that of Dean et al. 2012, section 4.1: gamma / sqrt(sum of the squares of all gradients
    so far), with gamma = lr and no constant added to the root. The paper reports that the best gamma is larger than the
    best fixed rate, perhaps by a factor of 10. If s is 0, the squares of all gradients so far were 0 or underflowed.

    Weight decay is an L2 penalty: weight_decay * w is added to the gradient first. Slot: squares, which holds s.
    """

    keeps_rows: ClassVar[bool] = True

    name: str = "adagrad"
    lr: Positive = 0.05

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        def update(w: State, g: Expr) -> NewValues:
            s = w.slot("squares")
            g = self.with_decay(w, g)
            new_s = s + g.square()
            zero, one = new_s.scalar(0.0), new_s.scalar(1.0)
            # Not ``new_s > 0``, which is false for NaN: a NaN must reach the variable, where it is detected.
            unused = apply(ops.equal, new_s, zero)
            root = apply(ops.select, unused, one, new_s).sqrt()
            direction = apply(ops.select, unused, zero, g) / root
            return [(s, new_s), (w, w - direction * learning_rate)]

        return update


@dataclass
class RmsProp(Optimizer):
    """m <- momentum * m + lr * g / sqrt(s + epsilon);  w <- w - m, with s <- decay * s + (1 - decay) * g ** 2.

    RMSProp (Tieleman and Hinton 2012) in the form of TensorFlow's RMSPropOptimizer, which the Inception papers use: s
    starts at 1, so that the first steps are short, and epsilon is inside the root. In PyTorch, s starts at 0 and
    epsilon is outside. The defaults are TensorFlow's, except for lr; the Inception v3 guide uses momentum 0.9 and
    epsilon 1.

    Weight decay is an L2 penalty: weight_decay * w is added to the gradient first. decay: weight of the old value in
    the average s. Slots: mean_square (s), momentum (m).
    """

    name: str = "rmsprop"
    lr: Positive = 0.001
    decay: Rate = 0.9
    momentum: Rate = 0.0
    epsilon: Positive = 1e-10

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        def update(w: State, g: Expr) -> NewValues:
            s, m = w.slot("mean_square", 1.0), w.slot("momentum")
            g = self.with_decay(w, g)
            new_s = _average(s, g.square(), self.decay)
            new_m = self.momentum * m + g * learning_rate / (new_s + self.epsilon).sqrt()
            return [(s, new_s), (m, new_m), (w, w - new_m)]

        return update


@dataclass
class Adam(Optimizer):
    """w <- w - lr * m_hat / (sqrt(v_hat) + epsilon), algorithm 1 of Kingma and Ba 2015.

    m <- beta1 * m + (1 - beta1) * g and v <- beta2 * v + (1 - beta2) * g ** 2 are running averages that start at 0;
    m_hat = m / (1 - beta1 ** t) and v_hat = v / (1 - beta2 ** t) correct them for this start. The first step is t = 1.

    Weight decay is an L2 penalty: weight_decay * w is added to the gradient g before the averages are updated, so the
    penalty is divided by sqrt(v_hat) as well; :class:`AdamW` avoids this.

    beta1, beta2: weights of the old values in the averages m and v. epsilon: keeps the division finite. Slots:
    first_moment (m), second_moment (v).
    """

    decays_direction: ClassVar[bool] = False
    """Whether the weight decay is added to the direction of the update, not to the gradient."""

    name: str = "adam"
    lr: Positive = 0.001
    beta1: Rate = 0.9
    beta2: Rate = 0.999
    epsilon: Positive = 1e-8

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        """Add the bias corrections of this step and return the rule."""
        dtype = learning_rate.spec.dtype
        with step.graph.name_scope("moments"):
            correction1, correction2 = (_correction(beta, step, dtype) for beta in (self.beta1, self.beta2))

        def update(w: State, g: Expr) -> NewValues:
            g = g if self.decays_direction else self.with_decay(w, g)
            m, v = w.slot("first_moment"), w.slot("second_moment")
            new_m = _average(m, g, self.beta1)
            new_v = _average(v, g.square(), self.beta2)
            m_hat, v_hat = new_m * correction1, new_v * correction2
            epsilon = v_hat.scalar(self.epsilon)
            direction = m_hat / (v_hat.sqrt() + epsilon)
            direction = self.with_decay(w, direction) if self.decays_direction else direction
            return [(m, new_m), (v, new_v), (w, w - direction * learning_rate)]

        return update


@dataclass
class AdamW(Adam):
    """w <- w - lr * (m_hat / (sqrt(v_hat) + epsilon) + weight_decay * w), with averages of the gradient alone.

    Algorithm 2 of Loshchilov and Hutter 2019, except that the decay is multiplied by the whole learning rate, as in
    PyTorch: the paper's lambda is lr * weight_decay here.
    """

    decays_direction: ClassVar[bool] = True

    name: str = "adamw"
    weight_decay: NonNegative = 0.01


def _average(old: Expr, value: Expr, beta: float) -> Expr:
    return beta * old + (1.0 - beta) * value


def _correction(beta: float, step: Expr, dtype: str) -> Expr:
    """Return the scalar 1 / (1 - beta ** (step + 1)), computed in float64 and rounded to ``dtype``.

    The power is exp((step + 1) * log(beta)). In float64, the relative error is below 1e-15 / (1 - beta); in float32,
    the difference 1 - 0.999 would lose three of seven digits.
    """
    if beta == 0.0:
        return step.scalar(1.0, dtype)
    one = step.scalar(1.0, "float64")
    t = apply(ops.cast, step, dtype="float64") + one
    power = (math.log(beta) * t).exp()
    return apply(ops.cast, one / (one - power), dtype=dtype)
