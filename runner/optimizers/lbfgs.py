"""L-BFGS (Nocedal 1980) for large fixed batches, as Sandblaster uses it (Dean et al. 2012, section 4.2)."""

from dataclasses import dataclass
from typing import ClassVar

from runner.bounds import Count, Positive, SmallCount
from runner.engine.graph.expression import Expr
from runner.errors import ConfigError
from runner.optimizers.base import Optimizer, Rule, require


@dataclass
class Lbfgs(Optimizer):
    """L-BFGS (Nocedal 1980) with a line search, for large batches; an iteration is one update, on one batch.

    The fields are settings of :func:`~runner.optimizers.quasi_newton.iterate`. history: number of pairs (s, y) kept,
    each two vectors of the size of the parameters. max_evaluations: evaluations of the batch in a line search; each
    iteration begins with one more, and ends with one more if the best point of the search is not its last.

    lr is 1: the line search finds the length of a step. clip_norm: largest length of the first trial step while the
    history is empty and the direction is that of the gradient; the line search may go further. weight_decay: strength
    of the penalty weight_decay / 2 * w'w that the objective has for decayed variables; the reported loss excludes it.
    Variables: the pairs, named "conv1/weights/step_0" and ".../change_0", and numbers in "lbfgs/...".
    """

    line_search: ClassVar[bool] = True

    name: str = "lbfgs"
    lr: Positive = 1.0
    history: SmallCount = 10
    max_evaluations: Count = 20

    def __post_init__(self) -> None:
        require(self.lr == 1.0, "lr", self.lr, "1.0; the line search finds the length of a step")

    @property
    def against_divergence(self) -> str:
        """Advice for losses that are no longer finite: the line search finds the length of all steps but the first."""
        clip = "set" if self.clip_norm is None else "lower"
        return f"{clip} optimizer.clip_norm, which bounds the first step, or raise optimizer.weight_decay"

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        """Raise ConfigError: one gradient does not determine the update."""
        raise ConfigError(
            "optimizer=lbfgs: its step needs more than one gradient; use it with parallelism=single or "
            "parallelism=sandblaster, which evaluate the batch along a line"
        )
