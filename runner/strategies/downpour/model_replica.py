"""A model replica of asynchronous training: its fetches, steps, accumulated gradients and pushes."""

from collections.abc import Sequence
from dataclasses import replace

from runner.engine.compile.program import Client
from runner.engine.graph import Expr, StateUpdate, Tensor, Variable, ops
from runner.engine.graph.rows import all_dense
from runner.strategies.clients import client_name
from runner.strategies.downpour.order import Rules
from runner.strategies.downpour.pushed_server import COUNT, Applied, PushedServer
from runner.strategies.replica import Share
from runner.strategies.servers import CopiedVariables, ReadVariables, ServedVariables

_NEVER = float(1 << 53)
"""A push count that no shard reaches. The count marks a replica that has made no step since its last push."""


class ModelReplica:
    """One replica with its share of the batches, and its clients.

    A replica that fetches no copies reads the servers' variables. begin: assign nodes that reset the accumulated
    gradients before the first step.
    """

    def __init__(
        self, served: ServedVariables, index: int, share: Share, shards: Sequence[PushedServer], rules: Rules
    ) -> None:
        """share: range of the replica's examples in every batch."""
        self.begin: list[str] = []
        self._index = index
        self._served = served
        self._rules = rules
        # A replica's gradient is the mean over its share, not over the whole batch.
        own = replace(served.workload, batch_size=share[1] - share[0])
        self._replica = served.replica(index, CopiedVariables if rules.fetches else ReadVariables, workload=own)
        computed = self._replica.compute_gradients(share, "train")
        with self._replica.within("clip"):
            # Gradients of several steps are accumulated, so gradients of tables become tensors of the table's size.
            gradients = all_dense(served.graph, own.optimizer.clipped(served.graph, computed.gradients))
        self._trained = [variable for variable, _ in gradients]
        self._averages = computed.state_updates
        values = [*gradients, *((each.variable, each.batch_value) for each in computed.state_updates)]
        self._accumulated = {variable.name: self._kept(f"held/{variable.name}", variable) for variable, _ in values}
        self._fetched = [self._counter(f"fetched_{shard.index}") for shard in shards]
        self._counted = [self._counter(f"counted_{shard.index}") for shard in shards]
        if rules.n_push > 1:
            with self._replica.within("begin"):
                self.begin = self._reset_values(list(self._accumulated.values()), self._counted)
        self.compute = Client(
            client_name("compute", index),
            fetches=computed.metrics,
            targets=(
                *self._accumulate(values),
                *self._record_counts(shards),
                *self._descend(gradients),
                *self._replica.carrying,
            ),
            inputs=tuple(self._replica.train_inputs),
            feeds={"step": (self._replica.step,), "learning_rate": (self._replica.learning_rate,)},
            deferred=True,
            slowed=True,
        )

    def fetch(self, shard: PushedServer) -> Client:
        """Return the client that copies a shard's trained variables and its count of pushes to the replica."""
        graph = self._served.graph
        with self._replica.within(f"fetch_{shard.index}"):
            counted = ops.assign(graph, self._fetched[shard.index], shard.applied).node
            copies = self._replica.variables
            assert isinstance(copies, CopiedVariables), "a replica without copies fetches nothing"
            copied = copies.fetch(self._of(shard))
        return Client(client_name("fetch", self._index, shard.index), targets=(counted, *copied), deferred=True)

    def push(self, shard: PushedServer) -> Client:
        """Return the client that applies the accumulated gradients on a shard and resets them."""
        applied = self._apply(shard, self._statistics(shard), "push")
        return Client(
            client_name("push", self._index, shard.index),
            fetches={"staleness": applied.staleness},
            targets=(*applied.targets, *self._reset(shard)),
            feeds={"learning_rate": (applied.learning_rate,)},
            deferred=True,
        )

    def flush(self, shards: Sequence[PushedServer]) -> Client:
        """Return the client that applies an incomplete push on every shard; ``begin`` must run before the next step.

        Moving averages do not advance, because their update needs the statistics of all ``n_push`` steps.
        """
        applied = [self._apply(shard, [], "flush") for shard in shards]
        return Client(
            client_name("flush", self._index),
            fetches={f"staleness_{shard.index}": each.staleness for shard, each in zip(shards, applied, strict=True)},
            targets=tuple(target for each in applied for target in each.targets),
            feeds={"learning_rate": tuple(each.learning_rate for each in applied)},
        )

    def _apply(self, shard: PushedServer, statistics: Sequence[StateUpdate], action: str) -> Applied:
        """Add the nodes that apply the accumulated gradients and some statistics on a shard."""
        gradients = [(self._served[each.name], self._accumulated[each.name]) for each in self._of(shard)]
        scope = f"{self._replica.prefix}/{action}_{shard.index}"
        return shard.apply(gradients, statistics, self._counted[shard.index], scope)

    def _of(self, shard: PushedServer) -> list[Variable]:
        return [each for each in self._trained if shard.keeps(self._served[each.name])]

    def _averages_of(self, shard: PushedServer) -> list[StateUpdate]:
        return [each for each in self._averages if shard.keeps(self._served[each.variable.name])]

    def _statistics(self, shard: PushedServer) -> list[StateUpdate]:
        """Return the statistics of a push: one update with the mean of n steps' statistics and with decay a ** n."""
        graph, steps = self._served.graph, self._rules.n_push
        updates = []
        for own in self._averages_of(shard):
            average, value = self._served[own.variable.name], self._accumulated[own.variable.name]
            scope = f"{self._replica.prefix}/push_{shard.index}"
            with graph.absolute_scope(scope), graph.device(shard.device), graph.layer(average.layer):
                mean = value if steps == 1 else ops.scale(graph, value, 1.0 / steps)
            updates.append(StateUpdate(average, mean, own.decay**steps))
        return updates

    def _accumulate(self, values: Sequence[tuple[Variable, Tensor]]) -> list[str]:
        """Add the values of a step to the accumulated values; with n_push = 1, replace the accumulated values."""
        graph = self._served.graph
        targets = []
        with self._replica.within("hold"):
            for variable, value in values:
                held = self._accumulated[variable.name]
                with graph.layer(variable.layer):
                    total = value if self._rules.n_push == 1 else ops.add(graph, held, value)
                    targets.append(ops.assign(graph, held, total).node)
        return targets

    def _record_counts(self, shards: Sequence[PushedServer]) -> list[str]:
        """Record each shard's push count for the weights from which the oldest accumulated gradient was computed."""
        graph = self._served.graph
        targets = []
        with self._replica.within("note"):
            for shard, fetched, counted in zip(shards, self._fetched, self._counted, strict=True):
                now = fetched if self._rules.fetches else shard.applied
                oldest = now if self._rules.n_push == 1 else ops.minimum(graph, counted, now)
                targets.append(ops.assign(graph, counted, oldest).node)
        return targets

    def _descend(self, gradients: Sequence[tuple[Variable, Tensor]]) -> list[str]:
        if not self._rules.descends:
            return []
        graph, optimizer = self._served.graph, self._served.workload.optimizer
        targets = []
        with self._replica.within("descend"):
            rate_of = optimizer.rate_by_name(optimizer.rates(Expr(graph, self._replica.learning_rate)))
            for copy, gradient in gradients:
                with graph.layer(copy.layer):
                    w, g = Expr(graph, copy.tensor), Expr(graph, gradient)
                    targets.append(ops.assign(graph, w.tensor, (w - g * rate_of(copy.name)).tensor).node)
        return targets

    def _reset(self, shard: PushedServer) -> list[str]:
        """Reset the accumulated values of a shard, except with n_push = 1, where the next step replaces them."""
        if self._rules.n_push == 1:
            return []
        names = [*(each.name for each in self._of(shard)), *(each.variable.name for each in self._averages_of(shard))]
        with self._replica.within(f"forget_{shard.index}"):
            return self._reset_values([self._accumulated[name] for name in names], [self._counted[shard.index]])

    def _reset_values(self, held: Sequence[Tensor], counted: Sequence[Tensor]) -> list[str]:
        graph = self._served.graph
        values = [*((each, 0.0) for each in held), *((each, _NEVER) for each in counted)]
        return [
            ops.assign(graph, each, ops.fill(graph, value, graph.spec(each).shape, graph.spec(each).dtype)).node
            for each, value in values
        ]

    def _kept(self, name: str, like: Variable) -> Tensor:
        """Add a variable of the replica; checkpoints do not contain the variable."""
        graph = self._served.graph
        with self._replica.within(""), graph.layer(like.layer):
            return ops.variable(graph, like.spec.shape, like.spec.dtype, name=name)

    def _counter(self, name: str) -> Tensor:
        with self._replica.within(""):
            return ops.variable(self._served.graph, (), COUNT, name=name)
