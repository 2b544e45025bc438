"""Training of sharded dense layers pass by pass: losses, gradients at the boundary, and updates between passes."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from runner.engine.graph import Gradient, Graph, StateUpdate, Tensor, Variable, ops
from runner.engine.graph.network import LOSS
from runner.strategies.latest import Latest
from runner.strategies.replica import Replica, advance, differentiate_together, ordered_sum, scaled, total_of, weighted
from runner.strategies.sharded.hybrid_layers import DensePass, Rows, add_dense
from runner.strategies.sharded.network_parts import PartsOf

Pairs = Sequence[tuple[Variable, Gradient]]
"""Variables with their gradients."""


class DenseTraining:
    """The training of the dense layers in one step.

    updates: number of updates of the dense layers in the step. boundary: pairs of an input tensor of a pass and the
    gradient of the batch's loss with respect to this tensor.
    """

    def __init__(
        self, replicas: Sequence[Replica], parts_of: PartsOf, *, updates: int, lr_factor: float, backward: bool
    ) -> None:
        """Start a step.

        parts_of: parts of the network in training mode. lr_factor: factor of the learning rate. backward: whether
        gradients with respect to the inputs of the first dense layer (the boundary) are needed.
        """
        self._replicas = replicas
        self._workload = replicas[0].workload
        self.updates = updates
        self._backward = backward
        self._parts_of = parts_of
        self._latest = [Latest(replica.variables) for replica in replicas]
        self._rates = [self._rate(replica, lr_factor) for replica in replicas]
        self._scores: list[dict[str, list[Tensor]]] = [defaultdict(list) for _ in replicas]
        self._statistics: list[dict[str, list[StateUpdate]]] = [defaultdict(list) for _ in replicas]
        self._pending: list[list[Pairs]] = [[] for _ in replicas]
        self.boundary: list[tuple[Tensor, Tensor]] = []

    @property
    def graph(self) -> Graph:
        return self._replicas[0].graph

    def add(self, rows: Rows, number: int) -> None:
        """Add forward and backward pass ``number`` of the step over ``rows``, with the latest values of variables."""
        scope = f"train/pass_{number}"
        added = add_dense(self._replicas, self._latest, self._parts_of, rows, scope)
        losses = self._score(added, scope)
        self._differentiate(losses, rows, scope)
        self._collect_statistics(added, sum(rows.counts), scope)

    def gradients(self) -> list[Pairs]:
        """Return each worker's gradients of its shards, summed in order over the passes since the last update.

        The gradients are divided by the number of examples of an update.
        """
        summed: list[Pairs] = []
        for replica, passes in zip(self._replicas, self._pending, strict=True):
            with replica.within("train/dense"):
                of = [variable for variable, _ in passes[0]]
                totals = [total_of(self.graph, [own[i][1] for own in passes]) for i in range(len(of))]
            summed.append(list(zip(of, totals, strict=True)))
            passes.clear()
        return summed

    def update(self, clipped: Sequence[Pairs], number: int) -> None:
        """Add update ``number`` of the step from each worker's gradients, which are already clipped."""
        for replica, latest, rate, pairs in zip(self._replicas, self._latest, self._rates, clipped, strict=True):
            scope = f"update/dense_{number}" if self.updates > 1 else "update"
            with replica.within(scope):
                latest.update(self._workload.optimizer, pairs, rate, replica.number_of_update(self.updates, number))

    def assign(self) -> list[str]:
        """Add the assignments of variables, slots and moving averages at the end of a step; return the nodes to run.

        A moving average is updated once, with the mean of the passes' statistics, weighted by pass size.
        """
        targets = []
        for replica, latest, statistics in zip(self._replicas, self._latest, self._statistics, strict=True):
            with replica.within("update"):
                targets += latest.assign()
                for parts in statistics.values():
                    mean = ordered_sum(self.graph, [each.batch_value for each in parts])
                    targets.append(advance(self.graph, replace(parts[0], batch_value=mean)))
        return targets

    def metrics(self) -> list[dict[str, Tensor]]:
        """Return each worker's parts of the batch's loss and metrics, by name."""
        parts: list[dict[str, Tensor]] = [{} for _ in self._replicas]
        for name in self._scores[0]:
            for replica, scores, own in zip(self._replicas, self._scores, parts, strict=True):
                with replica.within("train/scores"):
                    total = ordered_sum(self.graph, scores[name], name)
                    own[name] = scaled(self.graph, total, 1.0 / self._workload.batch_size, name)
        return parts

    def _score(self, added: DensePass, scope: str) -> list[Tensor]:
        """Add each worker's scores for a pass; return their parts of the mean loss of an update."""
        factor, losses = 1.0 / (self._workload.batch_size // self.updates), []
        for k, outputs in added.outputs.items():
            with self._replicas[k].within(scope):
                for name, values in outputs.summed.items():
                    self._scores[k][name].append(ops.reduce_sum(self.graph, values, axes=(0,)))
                losses.append(scaled(self.graph, self._scores[k][LOSS][-1], factor, "loss"))
        return losses

    def _differentiate(self, losses: Sequence[Tensor], rows: Rows, scope: str) -> None:
        shards = [latest.trainable for latest in self._latest]
        given = list(rows.boundary.values()) if self._backward else []
        pairs, found = differentiate_together(self._replicas, shards, scope, losses, inputs=given)
        for own, pending in zip(pairs, self._pending, strict=True):
            pending.append(own)
        for tensor, gradient in zip(given, found, strict=True):
            if gradient is not None:
                self.boundary.append((tensor, self._of_batch(tensor, gradient, scope)))

    def _of_batch(self, tensor: Tensor, gradient: Tensor, scope: str) -> Tensor:
        """Return the gradient of the batch's loss, given the gradient of the loss over the examples of an update."""
        if self.updates == 1:
            return gradient
        owner = self.graph.nodes[tensor.node]
        with self.graph.device(owner.device), self.graph.layer(owner.layer), self.graph.absolute_scope(scope):
            return ops.scale(self.graph, gradient, 1.0 / self.updates)

    def _collect_statistics(self, added: DensePass, examples: int, scope: str) -> None:
        for k, updates in added.state_updates.items():
            with self._replicas[k].within(scope):
                for each in updates:
                    part = weighted(self.graph, each, examples / self._workload.batch_size)
                    self._statistics[k][each.variable.name].append(part)

    def _rate(self, replica: Replica, factor: float) -> Tensor:
        if factor == 1.0:
            return replica.learning_rate
        with replica.within("update"):
            return ops.scale(self.graph, replica.learning_rate, factor)
