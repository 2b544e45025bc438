"""L-BFGS (Nocedal 1980) for large fixed batches, as Sandblaster uses it (Dean et al. 2012, section 4.2)."""

from dataclasses import dataclass

from runner.engine.graph import Graph
from runner.engine.tensor import Tensor
from runner.engine.variables import Variables
from runner.errors import ConfigError
from runner.optimizers.base import Optimizer, Rule, require


@dataclass
class Lbfgs(Optimizer):
    """L-BFGS (Nocedal 1980) with a line search, for large batches; an iteration is an update, on the batch of its step.

    Settings of :func:`~runner.optimizers.quasi_newton.iterate`.
    history: pairs (s, y) kept, two vectors of the size of the parameters each. max_evaluations: of the batch in a line
    search; one more begins each iteration, and one more ends it where the best point of the search is not its last.

    lr is 1: the line search finds the length of a step. clip_norm: how far the first step goes at most that is tried
    where no pair is known, along the gradient alone; the line search may go on. weight_decay: strength of the penalty
    weight_decay / 2 * w'w that the objective has for decayed variables; the loss that is told is without it.
    Variables: the pairs, named "conv1/weights/step_0" and ".../change_0", and numbers in "lbfgs/...".
    """

    name: str = "lbfgs"
    lr: float = 1.0
    history: int = 10
    max_evaluations: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lr == 1.0, "lr", self.lr, "1.0; the line search finds the length of a step")
        require(self.history >= 1, "history", self.history, "1 pair or more")
        require(self.max_evaluations >= 1, "max_evaluations", self.max_evaluations, "1 or more")

    @property
    def against_divergence(self) -> str:
        """What to do: the line search finds the length of all steps but the first."""
        clip = "set" if self.clip_norm is None else "lower"
        return f"{clip} optimizer.clip_norm, which bounds the first step, or raise optimizer.weight_decay"

    def rule(self, graph: Graph, variables: Variables, learning_rate: Tensor, step: Tensor) -> Rule:
        """There is none: raises ConfigError."""
        raise ConfigError(
            "optimizer=lbfgs: no gradient alone says where its step ends; use it with parallelism=single or "
            "parallelism=sandblaster, which evaluate the batch along a line"
        )
