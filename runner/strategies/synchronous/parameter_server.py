"""Synchronous data parallelism through parameter servers: one copy of the variables, on processes of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runner.engine import ops
from runner.engine.device import server_task, worker_task
from runner.engine.graph import Graph
from runner.engine.network import StateUpdate
from runner.engine.program import Program
from runner.engine.tensor import Tensor, TensorSpec
from runner.engine.variables import Declaration, Variable, Variables
from runner.errors import ConfigError
from runner.optimizers.base import assign_by
from runner.strategies.base import Gradients, Replica, Task, advance, ordered_sum, shares
from runner.strategies.clients import program
from runner.strategies.synchronous.batch_statistics import Compute


def parameter_server(task: Task, workers: int, servers: int, compute: Compute) -> Program:
    """Return the program of K workers that read all variables from S servers and send them their gradients.

    Whole variables are sharded over the servers by size (:func:`shard_by_size`), slots beside their variable. In each
    step a worker reads every variable it needs, computes the gradients of its share and sends each to the variable's
    server, which adds them in worker order, ((g0 + g1) + g2) + ..., and applies the optimizer. Moving averages of
    batch normalisation are variables like others; the parts of their statistics are sent and summed like gradients,
    and statistics that need no sum are sent by the first worker alone.

    Bytes on the wire in a step, values of b bytes, P of them trained (P_j on server j) and M statistics: server j
    sends K P_j b and each worker (P + M) b, in total K (2 P + M) b. With statistics of the first worker or of the whole
    batch only the first worker sends M b, in total (2 K P + M) b; the exchange of the latter comes on top
    (:func:`~runner.strategies.synchronous.pooled_normalization.pool_normalizations`). Moving averages are read in
    evaluations alone. Beside that every worker but the first sends the first its loss and its accuracy, 2 b. Clipping
    by global norm takes b from each trained variable that is not on the first server, to that server, and b from there
    to each other server.

    Raises ConfigError where there are more servers than variables.
    """
    graph = Graph()
    served = Variables(graph, seed=task.seed)
    kept = [Server(graph, task, j) for j in range(servers)]
    placed = {name: kept[j].device for name, j in shard_by_size(specs_of(task), servers).items()}
    replicas = [reading_replica(task, k, served, placed) for k in range(workers)]
    computed = compute(replicas, shares(task.batch_size, workers))
    graph = served.graph = replicas[0].graph
    with graph.device(replicas[0].device), graph.absolute_scope("train/total"):
        # Metrics are summed by the first worker, as by other ways to combine.
        loss = ordered_sum(graph, [each.loss for each in computed], "loss")
        accuracy = ordered_sum(graph, [each.accuracy for each in computed], "accuracy")
    sums = _sums_of_gradients(graph, served, computed)
    with graph.absolute_scope("update"), graph.device(kept[0].device):
        gradients = task.optimizer.clipped(graph, sums)
    targets = [
        *update_served(graph, task, served, kept, gradients),
        *advance_served(graph, served, _total_statistics(graph, served, computed)),
    ]
    return program(graph, replicas, loss=loss, accuracy=accuracy, targets=targets, variables=served, servers=kept)


def shard_by_size(specs: Mapping[str, TensorSpec], servers: int) -> dict[str, int]:
    """Spread whole variables over servers: the largest first, each to the server that has the fewest bytes so far.

    specs: by name, in order of creation. Of equal sizes the variable created first goes first; of equally full
    servers the first takes it. Returns name -> server, in the order of ``specs``. Raises ConfigError where a server
    would stay empty.
    """
    if servers > len(specs):
        raise ConfigError(
            f"parallelism.servers={servers}: the network has {len(specs)} variables, and a variable is not cut; "
            f"use {len(specs)} servers or fewer"
        )
    filled = [0] * servers
    held = [0] * servers
    chosen: dict[str, int] = {}
    for name in sorted(specs, key=lambda name: -specs[name].nbytes):
        # Among equally full servers one without variables comes first: variables without elements fill nothing.
        server = min(range(servers), key=lambda j: (filled[j], held[j]))
        chosen[name] = server
        filled[server] += specs[name].nbytes
        held[server] += 1
    return {name: chosen[name] for name in specs}


class Server:
    """One parameter server: its device, and what it is told in every step."""

    def __init__(self, graph: Graph, task: Task, index: int) -> None:
        self.device = server_task(index)
        self.scope = f"server_{index}"
        with graph.absolute_scope(self.scope), graph.device(self.device):
            self.step = ops.placeholder(graph, (), "int64", name="step")
            self.learning_rate = ops.placeholder(graph, (), task.state_dtype, name="learning_rate")


class Reads(Variables):
    """The served variables as one worker sees them: each is read from its server once, whatever then needs it."""

    def __init__(self, served: Variables, placed: Mapping[str, str], *, prefix: str, device: str) -> None:
        """placed: name of a variable -> device of its server. prefix, device: of the worker."""
        super().__init__(served.graph, seed=served.seed, prefix=prefix, device=device)
        self._served = served
        self._placed = placed

    def _create(self, declared: Declaration, device: str) -> Variable:
        variable = self._served.declare(declared, self._placed[declared.name])
        graph = self.graph
        with graph.absolute_scope(f"{self.prefix}/read"), graph.device(device), graph.layer(declared.layer):
            # Gradients are taken for this node: with the worker's own, what it adds up stays with it.
            return replace(variable, tensor=self._at_hand(variable))

    def _at_hand(self, variable: Variable) -> Tensor:
        """Add what the worker has of a served variable."""
        return ops.identity(self.graph, variable.tensor, name=variable.name)


def reading_replica(
    task: Task, index: int, served: Variables, placed: Mapping[str, str], kind: str = "replica"
) -> Replica:
    """Return a copy of the network on a worker that reads the served variables. kind: how its scope is called."""
    device, prefix = worker_task(index), f"{kind}_{index}"
    reads = Reads(served, placed, prefix=prefix, device=device)
    return Replica(served.graph, task, device=device, prefix=prefix, variables=reads)


def specs_of(task: Task) -> dict[str, TensorSpec]:
    """Every variable of the network in order of creation, from a forward pass in a graph of its own."""
    scratch = Replica(Graph(), task, device="")
    scratch.forward((0, 1), "train")
    return {variable.name: variable.spec for variable in scratch.variables}


def _sums_of_gradients(graph: Graph, served: Variables, computed: Sequence[Gradients]) -> list[tuple[Variable, Tensor]]:
    """Add every gradient up over the workers, on the server of its variable."""
    sums = []
    for i, (read, _) in enumerate(computed[0].gradients):
        variable = served[read.name]
        parts = [own.gradients[i][1] for own in computed]
        sums.append((variable, _summed_beside(graph, served, variable, parts)))
    return sums


def _summed_beside(graph: Graph, served: Variables, variable: Variable, parts: Sequence[Tensor]) -> Tensor:
    scope = f"reduce/{variable.name}"
    with graph.absolute_scope(scope), graph.device(served.device_of(variable)), graph.layer(variable.layer):
        # Of one worker's gradient too this node is here, so that whatever reads it is here as well.
        return ops.identity(graph, ordered_sum(graph, parts), name="total")


def update_served(
    graph: Graph, task: Task, served: Variables, servers: Sequence[Server], gradients: Sequence[tuple[Variable, Tensor]]
) -> list[str]:
    """Add the optimizer's update of every variable on its server; returns the assign nodes to run."""
    rules = {}
    for server in servers:
        with graph.absolute_scope(f"{server.scope}/update"), graph.device(server.device):
            rules[server.device] = task.optimizer.rule(graph, served, server.learning_rate, server.step)
    targets: list[str] = []
    for variable, gradient in gradients:
        device = served.device_of(variable)
        with graph.absolute_scope("update"), graph.device(device):
            targets += assign_by(graph, rules[device], variable, gradient)
    return targets


def _total_statistics(graph: Graph, served: Variables, computed: Sequence[Gradients]) -> list[StateUpdate]:
    """What moving averages advance by: what the workers' parts sum up to, each sum on the server of its average."""
    first = computed[0]
    # What needs no sum is the same on all workers; the first sends it.
    updates = list(first.settled)
    for i, update in enumerate(first.state_updates):
        parts = [own.state_updates[i].batch_value for own in computed]
        total = _summed_beside(graph, served, served[update.variable.name], parts)
        updates.append(replace(update, batch_value=total))
    return updates


def advance_served(graph: Graph, served: Variables, updates: Sequence[StateUpdate]) -> list[str]:
    """Add the next value of every moving average on its server; returns the assign nodes to run."""
    targets = []
    for update in updates:
        # Workers have views of the averages; what advances is the average itself.
        average = served[update.variable.name]
        with graph.absolute_scope("update"), graph.device(served.device_of(average)):
            targets.append(advance(graph, replace(update, variable=average)))
    return targets
