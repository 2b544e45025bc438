"""The contract of a strategy, and the pieces every strategy builds programs from.

A strategy is a function from a task to a :class:`Program`: it decides how many copies of the network there are,
where their nodes live and how their gradients meet. It sees layer stamps, never models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from runner.engine import ops
from runner.engine.autodiff import gradients
from runner.engine.graph import Graph
from runner.engine.inputs import FIELDS, InputSlot
from runner.engine.network import NetworkBuilder, NetworkFunction, Outputs, StateUpdate
from runner.engine.program import Program
from runner.engine.tensor import Tensor, TensorSpec, state_dtype
from runner.engine.variables import Variable, Variables
from runner.optimizers.base import Optimizer


@dataclass(frozen=True)
class Task:
    """What there is to train, free of any decision about where.

    example_shape: (C, H, W). dtype: of activations. batch_size: examples of one update over all
    workers. microbatches: parts a batch is computed in, one after the other, before its gradients are summed.
    """

    network: NetworkFunction
    optimizer: Optimizer
    example_shape: tuple[int, ...]
    dtype: str
    seed: int
    batch_size: int
    eval_batch_size: int
    microbatches: int = 1

    @property
    def state_dtype(self) -> str:
        """The dtype of variables, gradients, statistics and losses, and of what is fed."""
        return state_dtype(self.dtype)


class Strategy(Protocol):
    """One value of the ``parallelism`` axis; its dataclass fields are its configuration."""

    name: str
    workers: int

    def build(self, task: Task) -> Program:
        """Return the program that trains ``task`` this way."""
        ...


Share = tuple[int, int]


def shares(total: int, parts: int) -> list[Share]:
    """Cut 0..total into ``parts`` ranges as even as possible, larger ones first (numpy's array_split)."""
    base, extra = divmod(total, parts)
    edges = [0]
    for part in range(parts):
        edges.append(edges[-1] + base + (part < extra))
    return list(pairwise(edges))


@dataclass(frozen=True)
class Forward:
    """The forward pass of one copy over its share of the batch.

    loss, accuracy: of the share, already divided by the size of the whole batch. state_updates: statistics of the
    share as they are. scope: where the nodes stand in the replica.
    """

    share: Share
    scope: str
    loss: Tensor
    accuracy: Tensor
    state_updates: Sequence[StateUpdate]


@dataclass(frozen=True)
class Gradients:
    """What one copy computed on its share, already divided by the size of the whole batch.

    Summed over the shares these are the loss, the accuracy, the gradients and the batch statistics of the batch.
    settled: moving averages to advance by values that are no parts of a sum; they are equal in all copies.
    """

    loss: Tensor
    accuracy: Tensor
    gradients: Sequence[tuple[Variable, Tensor]]
    state_updates: Sequence[StateUpdate]
    settled: Sequence[StateUpdate] = ()


class Replica:
    """One copy of the network on one device: its variables, its scalars, its shares of the batches."""

    def __init__(
        self, graph: Graph, task: Task, *, device: str, prefix: str = "", variables: Variables | None = None
    ) -> None:
        """variables: what the network is built on; if None, the replica's own, on its device."""
        self.graph = graph
        self.task = task
        self.device = device
        self.prefix = prefix
        if variables is None:
            variables = Variables(graph, seed=task.seed, prefix=prefix, device=device)
        self.variables = variables
        self.train_inputs: list[InputSlot] = []
        self.eval_inputs: list[InputSlot] = []
        with graph.absolute_scope(prefix), graph.device(device):
            self.step = ops.placeholder(graph, (), "int64", name="step")
            self.learning_rate = ops.placeholder(graph, (), task.state_dtype, name="learning_rate")

    def adopt(self, graph: Graph) -> None:
        """Go on in ``graph``, a rewritten graph that holds all nodes this replica needs under their names."""
        self.graph = graph
        self.variables.graph = graph

    def compute_gradients(self, share: Share, scope: str) -> Gradients:
        """Add forward and backward pass over examples lo..hi-1 of the training batch."""
        forward = self.forward(share, scope)
        pairs = self.differentiate(forward)
        return Gradients(forward.loss, forward.accuracy, pairs, self.weighted(forward))

    def forward(self, share: Share, scope: str) -> Forward:
        """Add the forward pass over examples lo..hi-1 of the training batch."""
        with self._within(scope):
            batch, slots = self._inputs("train", share)
            self.train_inputs += slots
            net = self._builder(batch, training=True)
            outputs = self.task.network(net, batch)
            # A gradient is the sum over examples divided by the whole batch, so shares simply add up.
            loss = self._share_of_mean(outputs.losses, "loss")
            accuracy = self._share_of_mean(outputs.correct, "accuracy")
        return Forward(share, scope, loss, accuracy, net.state_updates)

    def differentiate(self, forward: Forward) -> list[tuple[Variable, Tensor]]:
        """Add the backward pass of a forward pass: the gradient of its loss for each trainable variable."""
        scope = self._scoped(f"{forward.scope}/gradients")
        with self._within(forward.scope):
            found = gradients(self.graph, [forward.loss], [v.tensor for v in self.variables.trainable], scope=scope)
        return self.paired(found, forward.scope)

    def paired(self, found: Sequence[Tensor | None], scope: str) -> list[tuple[Variable, Tensor]]:
        """Return each trainable variable with its gradient, zeros where the loss does not depend on it."""
        with self._within(scope):
            return [(v, self._or_zeros(v, each)) for v, each in zip(self.variables.trainable, found, strict=True)]

    def weighted(self, forward: Forward) -> list[StateUpdate]:
        """Return the statistics of a forward pass as parts of the mean over the batch."""
        with self._within(forward.scope):
            return [self._weighted(update, forward.share) for update in forward.state_updates]

    def apply(self, totals: Sequence[tuple[Variable, Tensor]], state_updates: Sequence[StateUpdate]) -> list[str]:
        """Add the optimizer's update and the moving averages; returns the assign nodes to run."""
        graph = self.graph
        with graph.absolute_scope(self._scoped("update")), graph.device(self.device):
            targets = self.task.optimizer.update(
                graph, self.variables, totals, learning_rate=self.learning_rate, step=self.step
            )
            for update in state_updates:
                targets.append(advance(graph, update))
        return targets

    def evaluate(self, share: Share) -> tuple[Outputs, Mapping[str, Tensor]]:
        """Add a forward pass over examples lo..hi-1 of an evaluation batch; returns outputs and inputs."""
        graph = self.graph
        with graph.absolute_scope(self._scoped("eval")), graph.device(self.device):
            batch, slots = self._inputs("test", share)
            self.eval_inputs += slots
            return self.task.network(self._builder(batch, training=False), batch), batch

    @contextmanager
    def _within(self, scope: str) -> Iterator[None]:
        with self.graph.absolute_scope(self._scoped(scope)), self.graph.device(self.device):
            yield

    def _scoped(self, scope: str) -> str:
        return f"{self.prefix}/{scope}" if self.prefix else scope

    def _builder(self, batch: Mapping[str, Tensor], *, training: bool) -> NetworkBuilder:
        return NetworkBuilder(
            self.graph,
            self.variables,
            dtype=self.task.dtype,
            seed=self.task.seed,
            training=training,
            step=self.step,
            index=batch["index"],
        )

    def _inputs(self, split: str, share: Share) -> tuple[dict[str, Tensor], list[InputSlot]]:
        count = share[1] - share[0]
        dtype = self.task.state_dtype
        specs = {
            "x": TensorSpec((count, *self.task.example_shape), dtype),
            "y": TensorSpec((count,), "int64"),
            "index": TensorSpec((count,), "int64"),
            "mask": TensorSpec((count,), dtype),
        }
        batch = {
            field: ops.placeholder(self.graph, specs[field].shape, specs[field].dtype, name=field) for field in FIELDS
        }
        slots = [InputSlot(tensor, split, field, *share) for field, tensor in batch.items()]
        return {**batch, "x": ops.as_dtype(self.graph, batch["x"], self.task.dtype)}, slots

    def _share_of_mean(self, per_example: Tensor, name: str) -> Tensor:
        total = ops.reduce_sum(self.graph, per_example, axes=(0,))
        return _scaled(self.graph, total, 1.0 / self.task.batch_size, self.task.state_dtype, name)

    def _or_zeros(self, variable: Variable, gradient: Tensor | None) -> Tensor:
        if gradient is not None:
            return gradient
        return ops.fill(self.graph, 0.0, variable.spec.shape, variable.spec.dtype)

    def _weighted(self, update: StateUpdate, share: Share) -> StateUpdate:
        weight = (share[1] - share[0]) / self.task.batch_size
        part = _scaled(self.graph, update.batch_value, weight, self.task.state_dtype, "statistic")
        return StateUpdate(update.variable, part, update.decay)


def advance(graph: Graph, update: StateUpdate) -> str:
    """Add the next value of a moving average; returns the assign node to run."""
    return ops.assign(graph, update.variable.tensor, moved(graph, update)).node


def moved(graph: Graph, update: StateUpdate) -> Tensor:
    """Add the next value of a moving average, and leave the average as it is."""
    variable = update.variable
    old = _scaled(graph, variable.tensor, update.decay, variable.spec.dtype, "old")
    new = _scaled(graph, update.batch_value, 1.0 - update.decay, variable.spec.dtype, "new")
    return ops.add(graph, old, new)


def _scaled(graph: Graph, tensor: Tensor, factor: float, dtype: str, name: str) -> Tensor:
    return ops.mul(graph, tensor, ops.fill(graph, factor, (), dtype), name=name)


def ordered_sum(graph: Graph, parts: Sequence[Tensor], name: str = "sum") -> Tensor:
    """Sum in the order given, ((p0 + p1) + p2) + ...: the one order every strategy uses for shares of a batch."""
    return parts[0] if len(parts) == 1 else ops.add_n(graph, parts, name=name)
