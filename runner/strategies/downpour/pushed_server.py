"""Parameter servers of asynchronous training: each applies pushes as they arrive, unless they are too stale."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.bounds import CountOrZero
from runner.engine.graph import Expr, StateUpdate, Tensor, Variable, ops, server_task
from runner.errors import ConfigError, require, require_one_of
from runner.optimizers.base import NewValues, State, assign_by
from runner.strategies.replica import advanced, rate_input
from runner.strategies.servers import ServedVariables

COUNT = "int64"
"""The dtype of the counts of pushes."""

POLICIES = ("none", "bounded", "drop", "scale")
_LIMITED = ("bounded", "drop")


@dataclass
class Staleness:
    """The section ``staleness`` of ``parallelism=async_data``.

    The staleness of a push on a shard is the number of pushes that the shard has applied since the fetch from which the
    push's oldest gradient was computed. The replica's own earlier pushes count; the push itself does not.

    policy: ``none``: every push is applied. ``bounded``: a replica does not start a step while it is more than
    ``limit`` finished steps ahead of the slowest replica (stale synchronous parallel, Ho et al. 2013); 0 is lockstep.
    ``drop``: a push with a staleness above ``limit`` is not applied, and is counted as dropped. ``scale``: the learning
    rate of a push is divided by its staleness if that is above 1 (Zhang et al. 2016, "Staleness-aware Async-SGD",
    equation 7; Gupta et al. 2016 divide by the mean staleness).
    """

    policy: str = "none"
    limit: CountOrZero | None = None

    def __post_init__(self) -> None:
        require_one_of("parallelism.staleness.policy", self.policy, POLICIES)
        if self.policy in _LIMITED:
            without = f"null with policy={self.policy}"
            require(self.limit is not None, "parallelism.staleness.limit", without, "0 or more")
        elif self.limit is not None:
            raise ConfigError(
                f"parallelism.staleness.limit={self.limit} with policy={self.policy}: only "
                f"{' and '.join(_LIMITED)} have a limit; choose one of them, or set limit to null"
            )

    @property
    def most_ahead(self) -> int | None:
        """The largest lead over the slowest replica, in finished steps, at which a step may start; None: no limit."""
        return self.limit if self.policy == "bounded" else None

    @property
    def most_stale(self) -> int | None:
        """The largest staleness of a push that is applied; None for no limit."""
        return self.limit if self.policy == "drop" else None


@dataclass(frozen=True)
class Applied:
    """The nodes of a push on its shard: targets to run, learning_rate () to feed, staleness () int64 to fetch."""

    targets: tuple[str, ...]
    learning_rate: Tensor
    staleness: Tensor


class PushedServer:
    """The variables of one parameter server, and its count of applied pushes.

    applied: () int64 variable, the count. begin: node that sets ``applied`` to ``begun_with``, a () int64 input.
    """

    def __init__(self, served: ServedVariables, index: int, staleness: Staleness) -> None:
        self.index = index
        self.device = server_task(index)
        graph = self._graph = served.graph
        self._served = served
        self._workload = served.workload
        self._staleness = staleness
        with graph.absolute_scope(f"server_{index}"), graph.device(self.device):
            self.applied = ops.variable(graph, (), COUNT, name="applied")
            self.begun_with = ops.placeholder(graph, (), COUNT, name="begun_with")
            self.begin = ops.assign(graph, self.applied, self.begun_with).node

    def keeps(self, variable: Variable) -> bool:
        """Return whether a served variable is on this shard."""
        return self._served.device_of(variable) == self.device

    def apply(
        self,
        gradients: Sequence[tuple[Variable, Tensor]],
        statistics: Sequence[StateUpdate],
        fetched_at: Tensor,
        scope: str,
    ) -> Applied:
        """Add the nodes that apply a push: the updates of the variables, of moving averages, and of the count.

        gradients: pairs of variable and gradient, summed over the steps since the last push. statistics: the updates of
        moving averages. fetched_at: () int64, the shard's push count at the fetch before the first of these steps.
        These tensors are on the replica's device. The optimizer's step is the number of pushes applied before, because
        each push is one update of the shard.
        """
        graph = self._graph
        with graph.absolute_scope(scope), graph.device(self.device):
            rate = rate_input(graph, self._workload)
            staleness = ops.sub(graph, self.applied, fetched_at, name="staleness")
            chosen = self._choice(staleness)
            rates = Expr(graph, self._scaled(rate, staleness))
            rule = self._workload.optimizer.updates(rates, Expr(graph, self.applied))

            def kept(w: State, g: Expr) -> NewValues:
                return [(state, Expr(graph, chosen(value.tensor, state.tensor))) for state, value in rule(w, g)]

            targets = [each for pair in gradients for each in assign_by(kept, self._served, *pair)]
            for update in statistics:
                average = update.variable
                targets.append(ops.assign(graph, average.tensor, chosen(advanced(graph, update), average.tensor)).node)
            more = ops.add(graph, self.applied, ops.fill(graph, 1, (), COUNT))
            targets.append(ops.assign(graph, self.applied, chosen(more, self.applied)).node)
        return Applied(tuple(targets), rate, staleness)

    def _choice(self, staleness: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Return a function of (new, old) whose result is new if the push is applied, and old if it is dropped."""
        graph, most = self._graph, self._staleness.most_stale
        if most is None:
            return lambda new, old: new
        dropped = ops.greater(graph, staleness, ops.fill(graph, most, (), COUNT), name="dropped")
        return lambda new, old: ops.select(graph, dropped, old, new)

    def _scaled(self, rate: Tensor, staleness: Tensor) -> Tensor:
        if self._staleness.policy != "scale":
            return rate
        graph = self._graph
        divisor = ops.maximum(graph, staleness, ops.fill(graph, 1, (), COUNT))
        return ops.div(graph, rate, ops.cast(graph, divisor, self._workload.state_dtype))
