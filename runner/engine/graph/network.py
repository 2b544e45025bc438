"""Networks in a graph: the builder through which layers add nodes, and the outputs that strategies read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace

from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.initializers import Constant, Initializer
from runner.engine.graph.node import LayerStamp
from runner.engine.graph.tensor import Tensor, TensorSpec, state_dtype
from runner.engine.graph.variables import Declaration, Part, Variable, Variables
from runner.errors import ConfigError


@dataclass(frozen=True)
class StateUpdate:
    """An update of a moving average: value <- decay * value + (1 - decay) * batch_value.

    batch_value: statistic of the share of the batch that one copy of the network processes; strategies combine the
    statistics of all copies. around: if ``variable`` is a variance, the variable of the corresponding mean; else None.
    """

    variable: Variable
    batch_value: Tensor
    decay: float
    around: Variable | None = None


@dataclass(frozen=True)
class CarriedState:
    """The state that a copy of a network carries from one step to the next: one row for each of its examples.

    variables: the store of the state. rows: (lo, hi); the copy processes rows lo..hi-1 of each whole batch. batch_size:
    number of rows of a whole batch. Each variable of the state is a part, rows lo..hi-1, of an unsharded variable of
    shape (batch_size, ...). So checkpoints do not depend on the division of the batch among copies.
    """

    variables: Variables
    rows: tuple[int, int]
    batch_size: int


@dataclass(frozen=True)
class Lookup:
    """The rows of a table that a network reads. indices: (n,) integers. rows: (n, ...), equal to table[indices]."""

    table: Variable
    indices: Tensor
    rows: Tensor


@dataclass(frozen=True)
class Answers:
    """Results for N examples, in the network's state dtype if they are floats.

    losses: (N,), the loss of each example. metrics: name -> (N,), values whose mean over the examples is a metric, such
    as "accuracy". collected: name -> (N, ...), values that an evaluation returns for all examples, e.g. "predictions".
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
        return [self.losses, self.prediction, *self.collected.values(), *self.metrics.values()]

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "Outputs":
        """Return outputs in which each tensor is replaced by ``function(tensor)``."""
        return Outputs(**vars(self.answers(function)), prediction=function(self.prediction))


COUNTED = "counted"
"""Name of the collected value (N,) that weights the examples of an evaluation: 0 to ignore an example, usually 1."""

LOSS = "loss"
"""The name of the mean loss among the metrics of a step or an evaluation."""

NetworkFunction = Callable[["NetworkBuilder", Mapping[str, Tensor]], Outputs]
"""A function that adds one copy of a network for the inputs x, y and index, and returns the outputs."""


@dataclass(eq=False)
class NetworkBuilder:
    """A builder that adds one copy of a network to a graph.

    dtype: dtype of activations. training: whether dropout is active and batch normalization uses the statistics of the
    batch. batch_statistics: whether batch normalization uses the statistics of the batch even if ``training`` is false,
    to collect the statistics of a new data domain. step: () int64. index: (N,) int64, global indices of the examples.
    All random draws are pure functions of ``seed``, ``step`` and ``index``. recompute: kinds of layers, or shell
    patterns of layer names, that the backward pass may recompute. begins: (N,) int64, 1 for an example that does not
    continue the example in the same row of the previous batch; None if the data has no such field. carried: see
    :class:`CarriedState`; None if state cannot be carried. auxiliary: pairs (prediction (N, outputs) of an auxiliary
    head, weight of its loss). carrying: names of the nodes that store state for the next step.
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
    begins: Tensor | None = None
    carried: CarriedState | None = None
    state_updates: list[StateUpdate] = field(default_factory=list, init=False)
    lookups: list[Lookup] = field(default_factory=list, init=False)
    layer_outputs: dict[str, Tensor] = field(default_factory=dict, init=False)
    auxiliary: list[tuple[Tensor, float]] = field(default_factory=list, init=False)
    carrying: list[str] = field(default_factory=list, init=False)
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
        full_name, spec = f"{self.stamp.name}/{name}", TensorSpec(shape, self.state_dtype)
        return self.variables.get(full_name, spec, initializer, trainable=trainable, decayed=decayed, layer=self.stamp)

    def output(self, tensor: Tensor) -> Tensor:
        """Record ``tensor`` as the output of the current layer, for `runner explain`, and return it."""
        self.layer_outputs[self.stamp.name] = tensor
        return tensor

    def lookup(self, table: Variable, indices: Tensor) -> Tensor:
        """Return table[indices] along axis 0; in training, record the lookup.

        table: (R, ...); indices: integers of shape I within 0..R-1, else the step raises an error; output: I + (...).
        If no other node reads the table, a strategy needs to send and update only the rows that were looked up.
        """
        if not self.training:
            return self.variables.lookup(table, indices)
        graph, shape = self.graph, self.graph.spec(indices).shape
        flat = indices if len(shape) == 1 else ops.reshape(graph, indices, (-1,))
        rows = self.variables.lookup(table, flat)
        self.lookups.append(Lookup(table, flat, rows))
        return rows if len(shape) == 1 else ops.reshape(graph, rows, (*shape, *table.spec.shape[1:]))

    def advance(self, variable: Variable, batch_value: Tensor, decay: float, *, around: Variable | None = None) -> None:
        """Request an update of a moving average at the end of the step; see :class:`StateUpdate`."""
        self.state_updates.append(StateUpdate(variable, batch_value, decay, around))

    def state(self, name: str, units: int) -> Variable:
        """Return the variable ``<layer>/<name>``, which carries state of this copy's examples from step to step.

        Shape: (N, units), in the network's state dtype; zeros at the start of a run. Raises ConfigError if this copy
        cannot carry state.
        """
        whole = self.carried
        if whole is None:
            raise ConfigError(
                f"layer {self.stamp.name!r} ({self.stamp.kind}) carries state from step to step, which L-BFGS, "
                "backup workers, parallelism=hybrid, parallelism=sandblaster, parallelism.shard and adaptations to "
                "another domain do not support: use parallelism=single, sync_data, model or async_data without these "
                "settings, or a model without such layers"
            )
        part = Part(TensorSpec((whole.batch_size, units), self.state_dtype), 0, *whole.rows)
        declared = Declaration(f"{self.stamp.name}/{name}", part.spec, Constant(0.0), False, False, self.stamp, part)
        return whole.variables.declare(declared, whole.variables.device)

    def carry(self, variable: Variable, value: Tensor) -> None:
        """Add a node that stores ``value`` in ``variable``, a variable of :meth:`state`, for the next step."""
        self.carrying.append(ops.assign(self.graph, variable.tensor, value).node)
