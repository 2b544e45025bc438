"""Running moments of gradients, corrected for their start at zero: the part that adam and adamw share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from runner.engine import ops
from runner.engine.graph import Graph
from runner.engine.tensor import Tensor
from runner.engine.variables import Variable, Variables
from runner.optimizers.base import NewValues


@dataclass(frozen=True)
class Moments:
    """The estimates of Kingma and Ba 2015, algorithm 1, for the variables of one update.

    corrections: () tensors 1 / (1 - beta1 ** t) and 1 / (1 - beta2 ** t) for t = step + 1.
    """

    graph: Graph
    variables: Variables
    beta1: float
    beta2: float
    epsilon: float
    corrections: tuple[Tensor, Tensor]

    @classmethod
    def at_step(
        cls,
        graph: Graph,
        variables: Variables,
        *,
        beta1: float,
        beta2: float,
        epsilon: float,
        step: Tensor,
        dtype: str,
    ) -> Moments:
        """Add the corrections, which all variables share. step: () int64, from 0; dtype: of the variables."""
        corrections = (_correction(graph, beta1, step, dtype), _correction(graph, beta2, step, dtype))
        return cls(graph, variables, beta1, beta2, epsilon, corrections)

    def direction(self, variable: Variable, gradient: Tensor) -> tuple[Tensor, NewValues]:
        """Add m_hat / (sqrt(v_hat) + epsilon); return it with the new values of the slots.

        m <- beta1 * m + (1 - beta1) * g;  v <- beta2 * v + (1 - beta2) * g ** 2; m_hat and v_hat are
        corrected.
        """
        graph = self.graph
        slot_m = self.variables.slot(variable, "first_moment")
        slot_v = self.variables.slot(variable, "second_moment")
        m = self._average(slot_m, gradient, self.beta1)
        v = self._average(slot_v, ops.square(graph, gradient), self.beta2)
        m_hat, v_hat = (
            ops.mul(graph, moment, correction) for moment, correction in zip((m, v), self.corrections, strict=True)
        )
        epsilon = ops.fill(graph, self.epsilon, (), variable.spec.dtype)
        deviation = ops.add(graph, ops.sqrt(graph, v_hat), epsilon)
        return ops.div(graph, m_hat, deviation), [(slot_m, m), (slot_v, v)]

    def _average(self, slot: Variable, value: Tensor, beta: float) -> Tensor:
        graph = self.graph
        return ops.add(graph, ops.scale(graph, slot.tensor, beta), ops.scale(graph, value, 1.0 - beta))


def _correction(graph: Graph, beta: float, step: Tensor, dtype: str) -> Tensor:
    """Add 1 / (1 - beta ** (step + 1)), () in ``dtype``, to a relative error of 1e-12 or of ``dtype``.

    The power is exp((step + 1) * log(beta)) in float64 whatever ``dtype`` is: in float32, 1 - 0.999 would
    lose four of its seven digits.
    """
    if beta == 0.0:
        return ops.fill(graph, 1.0, (), dtype)
    one = ops.fill(graph, 1.0, (), "float64")
    t = ops.add(graph, ops.cast(graph, step, "float64"), one)
    power = ops.exp(graph, ops.scale(graph, t, math.log(beta)))
    return ops.cast(graph, ops.div(graph, one, ops.sub(graph, one, power)), dtype)
