"""What an optimizer is: settings, and a rule that adds the update of each variable to a graph."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.engine import ops
from runner.engine.graph import Graph
from runner.engine.op import ShapeError
from runner.engine.tensor import Tensor
from runner.engine.variables import Variable, Variables
from runner.errors import ConfigError
from runner.optimizers.clipping import clip_factor, shortened

NewValues = list[tuple[Variable, Tensor]]
"""Variables and slots, each with its value after the step."""

Rule = Callable[[Variable, Tensor], NewValues]
"""Adds the update of one variable from its gradient."""


@dataclass
class Optimizer(ABC):
    """Base of all optimizers; the fields are their configuration.

    lr: base learning rate, which a schedule multiplies. weight_decay: strength of the pull of decayed
    variables (weights, but not biases and normalisation parameters) towards 0; what it multiplies is each
    optimizer's own. clip_norm: all gradients of an update together are shortened to this Euclidean norm;
    None is off.

    State is held in slots, variables named after the one they serve ("conv1/weights/velocity"). They live on
    its device and are saved in checkpoints with it.
    """

    name: str = ""
    lr: float = 0.01
    weight_decay: float = 0.0
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        require(0.0 < self.lr < math.inf, "lr", self.lr, "a finite number above 0")
        require(
            0.0 <= self.weight_decay < math.inf,
            "weight_decay",
            self.weight_decay,
            "a finite number, 0 or more",
        )
        clips = self.clip_norm is None or 0.0 < self.clip_norm < math.inf
        require(clips, "clip_norm", self.clip_norm, "null (off) or a finite number above 0")

    @property
    def against_divergence(self) -> str:
        """What to do where values cease to be finite: the settings that make steps shorter."""
        return f"lower optimizer.lr or {'set ' if self.clip_norm is None else ''}optimizer.clip_norm"

    def assign(
        self,
        graph: Graph,
        variables: Variables,
        gradients: Sequence[tuple[Variable, Tensor]],
        *,
        learning_rate: Tensor,
        step: Tensor,
    ) -> list[str]:
        """Add one update of every variable that comes with a gradient; return the names of the assign nodes.

        gradients: variables and their gradients, clipped already (:meth:`clipped`), any tensors of the graph of the
        variable's shape and dtype. variables: the store that slots are put in. learning_rate: () in the variables'
        dtype. step: () int64, the number of the step, from 0.
        Nodes are stamped with the layer of the variable they update; scope and device are the caller's.
        """
        if not gradients:
            return []
        rule = self.rule(graph, variables, learning_rate, step)
        return [target for variable, gradient in gradients for target in assign_by(graph, rule, variable, gradient)]

    def clipped(
        self,
        graph: Graph,
        gradients: Sequence[tuple[Variable, Tensor]],
        counted: Sequence[Tensor] | None = None,
    ) -> list[tuple[Variable, Tensor]]:
        """Add what ``clip_norm`` asks for and return the variables with the gradients to update by.

        Arguments and errors are those of :meth:`clip_factor`.
        """
        factor = self.clip_factor(graph, gradients, counted)
        return list(gradients) if factor is None else self.shortened(graph, gradients, factor)

    def clip_factor(
        self,
        graph: Graph,
        gradients: Sequence[tuple[Variable, Tensor]],
        counted: Sequence[Tensor] | None = None,
    ) -> Tensor | None:
        """Add what ``clip_norm`` multiplies all gradients by, () in their dtype; None where nothing is clipped.

        gradients: variables and their gradients; the norm is taken over these, in this order. They may be on several
        devices, and the norm is that of ``counted`` where some are copies: see
        :func:`~runner.optimizers.clipping.clip_factor`. Raises ShapeError when a gradient is not like its variable.
        """
        for variable, gradient in gradients:
            _expect_alike(graph, variable, gradient)
        if self.clip_norm is None or not gradients:
            return None
        tensors = [gradient for _, gradient in gradients] if counted is None else counted
        with graph.name_scope("clip"):
            return clip_factor(graph, tensors, self.clip_norm)

    def shortened(
        self, graph: Graph, gradients: Sequence[tuple[Variable, Tensor]], factor: Tensor
    ) -> list[tuple[Variable, Tensor]]:
        """Add the gradients times ``factor``, and return them with their variables."""
        with graph.name_scope("clip"):
            short = shortened(graph, [gradient for _, gradient in gradients], factor)
        return [(variable, gradient) for (variable, _), gradient in zip(gradients, short, strict=True)]

    @abstractmethod
    def rule(self, graph: Graph, variables: Variables, learning_rate: Tensor, step: Tensor) -> Rule:
        """Add what all variables share and return the rule for each; arguments as for :meth:`assign`."""

    def with_decay(self, graph: Graph, variable: Variable, tensor: Tensor) -> Tensor:
        """Add tensor + weight_decay * variable, or return ``tensor`` where nothing decays."""
        if self.weight_decay == 0.0 or not variable.decayed:
            return tensor
        return ops.add(graph, tensor, ops.scale(graph, variable.tensor, self.weight_decay))


def assign_by(graph: Graph, rule: Rule, variable: Variable, gradient: Tensor) -> list[str]:
    """Add the update of one variable and its slots by a rule; return the names of the assign nodes."""
    with graph.name_scope(variable.name), graph.layer(variable.layer):
        return [ops.assign(graph, state.tensor, value).node for state, value in rule(variable, gradient)]


def descend(graph: Graph, variable: Variable, direction: Tensor, learning_rate: Tensor) -> Tensor:
    """Add variable - learning_rate * direction."""
    return ops.sub(graph, variable.tensor, ops.mul(graph, direction, learning_rate))


def require(holds: bool, key: str, value: object, expected: str) -> None:
    """Raise ConfigError naming the key of the ``optimizer`` group unless the condition holds."""
    if not holds:
        raise ConfigError(f"optimizer.{key}={value}: expected {expected}")


def require_decay_rate(key: str, value: float) -> None:
    """Require a weight of the past in a running average or sum: from 0, below 1."""
    require(0.0 <= value < 1.0, key, value, "a number from 0 to below 1")


def _expect_alike(graph: Graph, variable: Variable, gradient: Tensor) -> None:
    # Arithmetic broadcasts, so a gradient of another shape would not be noticed later.
    found = graph.spec(gradient)
    if found != variable.spec:
        raise ShapeError(f"the gradient {gradient} of variable {variable.name!r} is {found}; expected {variable.spec}")
