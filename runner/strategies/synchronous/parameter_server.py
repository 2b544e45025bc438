"""Synchronous data parallelism through parameter servers, which keep the one copy of the variables."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.engine.compile.program import Program
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.network import StateUpdate
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.variables import Variable, Variables
from runner.strategies.base import Processes, Strategy, Task
from runner.strategies.clients import program
from runner.strategies.replica import Gradients, batch_scores, ordered_sum, shares
from runner.strategies.servers import ReadVariables, ServedVariables, Server, advance_served, update_served
from runner.strategies.synchronous.batch_statistics import Compute


@dataclass(kw_only=True)
class ParameterServer(Strategy):
    """``combine=parameter_server``: K workers read all variables from S servers and send them their gradients.

    Whole variables are sharded over the servers by size
    (:func:`~runner.strategies.servers.shard_by_size`), slots with their variable. In each step a
    worker reads every variable it needs, computes the gradients of its share and sends each to the variable's server,
    which adds them in worker order, ((g0 + g1) + g2) + ..., and applies the optimizer. Moving averages of batch
    normalisation are variables like others; the parts of their statistics are sent and summed like gradients, and
    statistics that need no sum are sent by the first worker alone.

    Bytes on the wire in a step, values of b bytes, P of them trained (P_j on server j) and M statistics: server j
    sends K P_j b and each worker (P + M) b, in total K (2 P + M) b. With statistics of the first worker or of the whole
    batch only the first worker sends M b, in total (2 K P + M) b; the exchange of the latter is added to that
    (:func:`~runner.strategies.synchronous.pooled_normalization.pool_normalizations`). Moving averages are read in
    evaluations alone. Every worker but the first also sends the first its loss and its accuracy, 2 b. Clipping
    by global norm takes b from each trained variable that is not on the first server, to that server, and b from there
    to each other server.
    """

    name: str = "sync_data"
    servers: int
    compute: Compute

    @property
    def processes(self) -> Processes:
        """Workers and parameter servers."""
        return Processes(self.workers, self.servers)

    def build(self, task: Task) -> Program:
        """Return the program. Raises ConfigError if there are more servers than variables."""
        served = ServedVariables(task, self.servers)
        kept = [Server(served.graph, task, j) for j in range(self.servers)]
        replicas = [served.replica(k, ReadVariables) for k in range(self.workers)]
        computed = self.compute(replicas, shares(task.batch_size, self.workers))
        graph = served.graph = replicas[0].graph
        loss, accuracy = batch_scores(replicas[0], computed)
        sums = _sums_of_gradients(graph, served, computed)
        with graph.absolute_scope("update"), graph.device(kept[0].device):
            gradients = task.optimizer.clipped(graph, sums)
        targets = [
            *update_served(graph, task, served, kept, gradients),
            *advance_served(graph, served, _total_statistics(graph, served, computed)),
        ]
        return program(graph, replicas, loss=loss, accuracy=accuracy, targets=targets, variables=served, servers=kept)


def _sums_of_gradients(graph: Graph, served: Variables, computed: Sequence[Gradients]) -> list[tuple[Variable, Tensor]]:
    """Sum every gradient over the workers, on the server of its variable."""
    sums = []
    for i, (read, _) in enumerate(computed[0].gradients):
        variable = served[read.name]
        parts = [own.gradients[i][1] for own in computed]
        sums.append((variable, _summed_on_server(graph, served, variable, parts)))
    return sums


def _summed_on_server(graph: Graph, served: Variables, variable: Variable, parts: Sequence[Tensor]) -> Tensor:
    scope = f"reduce/{variable.name}"
    with graph.absolute_scope(scope), graph.device(served.device_of(variable)), graph.layer(variable.layer):
        # With one worker, too, a node of the server: nodes that read the sum then are on the server.
        return ops.identity(graph, ordered_sum(graph, parts), name="total")


def _total_statistics(graph: Graph, served: Variables, computed: Sequence[Gradients]) -> list[StateUpdate]:
    """Sum the workers' parts of statistics, each on the server of its moving average."""
    first = computed[0]
    # Statistics that need no sum are equal on all workers; the first sends them.
    updates = list(first.settled)
    for i, update in enumerate(first.state_updates):
        parts = [own.state_updates[i].batch_value for own in computed]
        total = _summed_on_server(graph, served, served[update.variable.name], parts)
        updates.append(replace(update, batch_value=total))
    return updates
