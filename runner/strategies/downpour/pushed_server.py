"""Parameter servers of asynchronous training: each applies every push as it arrives and counts pushes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.engine.graph import ops
from runner.engine.graph.device import server_task
from runner.engine.graph.expression import Expr
from runner.engine.graph.graph import Graph
from runner.engine.graph.network import StateUpdate
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.variables import Variable, Variables
from runner.optimizers.base import NewValues, State, assign_by
from runner.strategies.base import Task
from runner.strategies.downpour.staleness import Staleness
from runner.strategies.replica import advanced

COUNT = "int64"
"""The dtype of counted pushes."""


@dataclass(frozen=True)
class Pushed:
    """The content of a push to one shard. All tensors are on the replica.

    gradients: pairs of variable and gradient, summed over the steps since the last push. statistics: the batch values
    for moving averages. counted: () int64, the shard's count of pushes at the fetch before the first of these steps.
    """

    gradients: Sequence[tuple[Variable, Tensor]]
    statistics: Sequence[StateUpdate]
    counted: Tensor


@dataclass(frozen=True)
class Applied:
    """Nodes of one push on its shard. targets: to run. learning_rate: () to feed. staleness: () int64 to fetch."""

    targets: tuple[str, ...]
    learning_rate: Tensor
    staleness: Tensor


class PushedServer:
    """The variables of one parameter server, and its count of applied pushes.

    applied: () int64 variable, the count. begin: node that sets it to ``begun_with``, a () int64 placeholder.
    """

    def __init__(self, graph: Graph, served: Variables, index: int, task: Task, staleness: Staleness) -> None:
        self.index = index
        self.device = server_task(index)
        self._graph = graph
        self._served = served
        self._task = task
        self._staleness = staleness
        with graph.absolute_scope(f"server_{index}"), graph.device(self.device):
            self.applied = ops.variable(graph, (), COUNT, name="applied")
            self.begun_with = ops.placeholder(graph, (), COUNT, name="begun_with")
            self.begin = ops.assign(graph, self.applied, self.begun_with).node

    def keeps(self, variable: Variable) -> bool:
        """Return whether a served variable is on this shard."""
        return self._served.device_of(variable) == self.device

    def apply(self, pushed: Pushed, scope: str) -> Applied:
        """Add the effects of a push: the optimizer's update, moving averages, and the count.

        The optimizer's step is the number of pushes applied before, because each push is one update of the variables.
        """
        graph = self._graph
        with graph.absolute_scope(scope), graph.device(self.device):
            rate = ops.placeholder(graph, (), self._task.state_dtype, name="learning_rate")
            staleness = ops.sub(graph, self.applied, pushed.counted, name="staleness")
            chosen = self._choice(staleness)
            rule = self._task.optimizer.rule(Expr(graph, self._scaled(rate, staleness)), Expr(graph, self.applied))

            def kept(w: State, g: Expr) -> NewValues:
                return [(state, Expr(graph, chosen(value.tensor, state.tensor))) for state, value in rule(w, g)]

            targets = [each for pair in pushed.gradients for each in assign_by(kept, self._served, *pair)]
            for update in pushed.statistics:
                average = update.variable
                targets.append(ops.assign(graph, average.tensor, chosen(advanced(graph, update), average.tensor)).node)
            more = ops.add(graph, self.applied, ops.fill(graph, 1, (), COUNT))
            targets.append(ops.assign(graph, self.applied, chosen(more, self.applied)).node)
        return Applied(tuple(targets), rate, staleness)

    def _choice(self, staleness: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Return a function of (new, old) that adds the new value if the push is applied, the old one if dropped."""
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
        return ops.div(graph, rate, ops.cast(graph, divisor, self._task.state_dtype))
