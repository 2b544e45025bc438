"""Networks in a graph: the builder through which layers add nodes, and the outputs that strategies read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace

from runner.engine.graph.graph import Graph
from runner.engine.graph.initializers import Initializer
from runner.engine.graph.node import LayerStamp
from runner.engine.graph.tensor import Tensor, TensorSpec, state_dtype
from runner.engine.graph.variables import Variable, Variables


@dataclass(frozen=True)
class StateUpdate:
    """An update of a moving average: value <- decay * value + (1 - decay) * batch_value.

    batch_value is the statistic of the share of the batch that one copy processes; strategies combine these statistics.
    around: for a variance, the variable of the mean around which it is computed; None for a mean.
    """

    variable: Variable
    batch_value: Tensor
    decay: float
    around: Variable | None = None


@dataclass(frozen=True)
class Answers:
    """Results for N examples, in the network's state dtype if they are floats.

    losses: (N,), the loss of each example. metrics: name -> (N,), values whose mean over the examples is a metric, such
    as "accuracy". collected: name -> (N, ...), values of which an evaluation returns all, such as "predictions".
    """

    losses: Tensor
    metrics: Mapping[str, Tensor]
    collected: Mapping[str, Tensor]

    @property
    def summed(self) -> dict[str, Tensor]:
        """The loss and the metrics of each example, by name."""
        return {LOSS: self.losses, **self.metrics}

    def answers(self, function: Callable[[Tensor], Tensor]) -> "Answers":
        """Return answers in which each tensor is replaced by ``function(tensor)``."""
        metrics, collected = (
            {name: function(each) for name, each in group.items()} for group in (self.metrics, self.collected)
        )
        return Answers(function(self.losses), metrics, collected)


@dataclass(frozen=True)
class Outputs(Answers):
    """Outputs of a network for N examples. prediction: (N, ...), the predicted values, such as logits (N, C)."""

    prediction: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors."""
        return [self.losses, self.prediction, *self.collected.values(), *self.metrics.values()]

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "Outputs":
        """Return outputs in which each tensor is replaced by ``function(tensor)``."""
        return Outputs(**vars(self.answers(function)), prediction=function(self.prediction))


COUNTED = "counted"
"""The name, among collected values, of a mask (N,): 1 for examples that count in an evaluation, 0 for ignored ones."""

LOSS = "loss"
"""The name of the mean loss among the metrics of a step or an evaluation."""

NetworkFunction = Callable[["NetworkBuilder", Mapping[str, Tensor]], Outputs]
"""A function that adds one copy of a network for the inputs x, y and index, and returns the outputs."""


@dataclass(eq=False)
class NetworkBuilder:
    """A builder that adds one copy of a network to a graph.

    dtype: dtype of activations. training: whether dropout is active and batch normalization uses the statistics of the
    batch. batch_statistics: whether batch normalization uses the statistics of the batch although ``training`` is
    false, to collect the statistics of a domain. step: () int64, index: (N,) int64; the random draws of a step are pure
    functions of ``seed``, ``step`` and ``index``. recompute: kinds and shell patterns of names of the layers that the
    backward pass may recompute. auxiliary: pairs of the prediction (N, outputs) of an auxiliary head and the weight of
    its loss.
    """

    graph: Graph
    variables: Variables
    _: KW_ONLY
    dtype: str
    seed: int
    training: bool
    step: Tensor
    index: Tensor
    batch_statistics: bool = False
    recompute: Sequence[str] = ()
    state_updates: list[StateUpdate] = field(default_factory=list, init=False)
    layer_outputs: dict[str, Tensor] = field(default_factory=dict, init=False)
    auxiliary: list[tuple[Tensor, float]] = field(default_factory=list, init=False)
    _layer: LayerStamp | None = field(default=None, init=False)

    @property
    def state_dtype(self) -> str:
        """The dtype of variables, statistics and losses."""
        return state_dtype(self.dtype)

    @contextmanager
    def layer(self, name: str, kind: str) -> Iterator[None]:
        """Prefix names of nodes added inside the block with ``name/``, and record the layer on nodes and variables."""
        stamp = LayerStamp(name, kind)
        recomputed = any(stamp.selected_by(item) for item in self.recompute)
        outer, self._layer = self._layer, replace(stamp, recomputed=recomputed)
        try:
            with self.graph.name_scope(name), self.graph.layer(self._layer):
                yield
        finally:
            self._layer = outer

    @property
    def stamp(self) -> LayerStamp:
        """The layer being added; raises ValueError outside of a layer."""
        if self._layer is None:
            raise ValueError("no layer is being added: wrap the call in `with builder.layer(name, kind):`")
        return self._layer

    def parameter(
        self,
        name: str,
        shape: tuple[int, ...],
        initializer: Initializer,
        *,
        trainable: bool = True,
        decayed: bool = False,
    ) -> Variable:
        """Return the variable ``<layer>/<name>`` in the network's state dtype."""
        return self.variables.get(
            f"{self.stamp.name}/{name}",
            TensorSpec(shape, self.state_dtype),
            initializer,
            trainable=trainable,
            decayed=decayed,
            layer=self.stamp,
        )

    def output(self, tensor: Tensor) -> Tensor:
        """Record ``tensor`` as the output of the current layer, for `runner explain`, and return it."""
        self.layer_outputs[self.stamp.name] = tensor
        return tensor

    def advance(self, variable: Variable, batch_value: Tensor, decay: float, *, around: Variable | None = None) -> None:
        """Request the update of a moving average at the end of the step; see :class:`StateUpdate`."""
        self.state_updates.append(StateUpdate(variable, batch_value, decay, around))
