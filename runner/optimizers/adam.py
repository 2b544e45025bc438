"""Adaptive learning rates: Adagrad and Adam."""

import math
from dataclasses import dataclass

from runner.bounds import NonNegative, Positive, Rate
from runner.engine.graph import ops
from runner.engine.graph.expression import Expr, apply
from runner.optimizers.base import NewValues, Optimizer, Rule, State


@dataclass
class Adagrad(Optimizer):
    """s <- s + g ** 2;  w <- w - lr * g / sqrt(s), element by element, and no update where s is 0.

    The rate of Dean et al. 2012, section 4.1: gamma / sqrt(sum of the squares of all gradients so far), with gamma = lr
    and nothing added to the root. They report a best lr that is larger than the best fixed rate, perhaps by a factor of
    10. Where s is 0, every gradient so far was 0, or so small that its square is 0; the element keeps its value.

    Weight decay is an L2 penalty: weight_decay * w is added to the gradient first. Slot: squares.
    """

    name: str = "adagrad"
    lr: Positive = 0.05

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        """Return the rule; variables share no nodes."""

        def update(w: State, g: Expr) -> NewValues:
            s = w.slot("squares")
            g = self.with_decay(w, g)
            new_s = s + g.square()
            zero, one = new_s.scalar(0.0), new_s.scalar(1.0)
            # Not new_s > 0, which is false for NaN: a NaN must reach the variable, where it is noticed.
            unused = apply(ops.equal, new_s, zero)
            root = apply(ops.select, unused, one, new_s).sqrt()
            direction = apply(ops.select, unused, zero, g) / root
            return [(s, new_s), (w, w - direction * learning_rate)]

        return update


@dataclass
class Adam(Optimizer):
    """w <- w - lr * m_hat / (sqrt(v_hat) + epsilon), algorithm 1 of Kingma and Ba 2015.

    m <- beta1 * m + (1 - beta1) * g and v <- beta2 * v + (1 - beta2) * g ** 2 are running averages, and m_hat and v_hat
    are m / (1 - beta1 ** t) and v / (1 - beta2 ** t) at step t, from 1: corrected for their start at 0.

    Weight decay is an L2 penalty: weight_decay * w is added to the gradient before the averages, so it is divided by
    sqrt(v_hat) as well; :class:`AdamW` avoids this.

    beta1, beta2: weights of the past in the averages of g and of g ** 2. epsilon: keeps the division finite. Slots:
    first_moment, second_moment.
    """

    name: str = "adam"
    lr: Positive = 0.001
    beta1: Rate = 0.9
    beta2: Rate = 0.999
    epsilon: Positive = 1e-8

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        """Add the bias corrections of this step and return the rule."""
        corrections = self._corrections(learning_rate, step)

        def update(w: State, g: Expr) -> NewValues:
            direction, moments = self._direction(w, self.with_decay(w, g), *corrections)
            return [*moments, (w, w - direction * learning_rate)]

        return update

    def _corrections(self, learning_rate: Expr, step: Expr) -> tuple[Expr, Expr]:
        dtype = learning_rate.spec.dtype
        with step.graph.name_scope("moments"):
            return _correction(self.beta1, step, dtype), _correction(self.beta2, step, dtype)

    def _direction(self, w: State, g: Expr, correction1: Expr, correction2: Expr) -> tuple[Expr, NewValues]:
        """Return m_hat / (sqrt(v_hat) + epsilon), and the new values of the slots."""
        m, v = w.slot("first_moment"), w.slot("second_moment")
        new_m = _average(m, g, self.beta1)
        new_v = _average(v, g.square(), self.beta2)
        m_hat, v_hat = new_m * correction1, new_v * correction2
        epsilon = v_hat.scalar(self.epsilon)
        return m_hat / (v_hat.sqrt() + epsilon), [(m, new_m), (v, new_v)]


@dataclass
class AdamW(Adam):
    """w <- w - lr * (m_hat / (sqrt(v_hat) + epsilon) + weight_decay * w), with averages of the gradient alone.

    Algorithm 2 of Loshchilov and Hutter 2019 with the decay multiplied by the whole learning rate, as in PyTorch: the
    paper's lambda is lr * weight_decay here.
    """

    name: str = "adamw"
    weight_decay: NonNegative = 0.01

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        """Add the bias corrections of this step and return the rule."""
        corrections = self._corrections(learning_rate, step)

        def update(w: State, g: Expr) -> NewValues:
            direction, moments = self._direction(w, g, *corrections)
            return [*moments, (w, w - self.with_decay(w, direction) * learning_rate)]

        return update


def _average(old: Expr, value: Expr, beta: float) -> Expr:
    return beta * old + (1.0 - beta) * value


def _correction(beta: float, step: Expr, dtype: str) -> Expr:
    """Return 1 / (1 - beta ** (step + 1)), () in ``dtype``, to a relative error of 1e-12 or of ``dtype``.

    The power is exp((step + 1) * log(beta)) in float64 whatever ``dtype`` is: in float32, 1 - 0.999 would lose four of
    its seven digits.
    """
    if beta == 0.0:
        return step.scalar(1.0, dtype)
    one = step.scalar(1.0, "float64")
    t = apply(ops.cast, step, dtype="float64") + one
    power = (math.log(beta) * t).exp()
    return apply(ops.cast, one / (one - power), dtype=dtype)
