"""Adagrad (Duchi et al. 2011) as DistBelief's parameter servers apply it."""

from dataclasses import dataclass

from runner.engine import ops
from runner.engine.graph import Graph
from runner.engine.tensor import Tensor
from runner.engine.variables import Variable, Variables
from runner.optimizers.base import NewValues, Optimizer, Rule, descend


@dataclass
class Adagrad(Optimizer):
    """s <- s + g ** 2;  w <- w - lr * g / sqrt(s), value by value, and no update where s is 0.

    The rate of Dean et al. 2012, section 4.1: gamma / sqrt(sum of the squares of all gradients so far), with gamma = lr
    and nothing added to the root. They find the best lr larger, perhaps by a factor of 10, than the best fixed rate.
    Where s is 0 no gradient was ever other than 0, or so small that its square is 0; the value stays as it is.

    Weight decay is an L2 penalty: weight_decay * w is added to the gradient first. Slot: squares.
    """

    name: str = "adagrad"
    lr: float = 0.05

    def rule(self, graph: Graph, variables: Variables, learning_rate: Tensor, step: Tensor) -> Rule:
        """Return the rule; variables share nothing."""

        def updated(variable: Variable, gradient: Tensor) -> NewValues:
            slot = variables.slot(variable, "squares")
            penalised = self.with_decay(graph, variable, gradient)
            squares = ops.add(graph, slot.tensor, ops.square(graph, penalised))
            zero, one = (ops.fill(graph, value, (), variable.spec.dtype) for value in (0.0, 1.0))
            # Not "above 0": a sum that is not a number must reach the variable and be seen there.
            still = ops.equal(graph, squares, zero)
            root = ops.sqrt(graph, ops.select(graph, still, one, squares))
            direction = ops.div(graph, ops.select(graph, still, zero, penalised), root)
            return [(slot, squares), (variable, descend(graph, variable, direction, learning_rate))]

        return updated
