"""Synchronous data parallelism in which all workers contribute to each update, by a collective or parameter servers."""

from collections.abc import Sequence
from dataclasses import replace

from runner.engine.compile.program import Program
from runner.engine.graph import Gradient, Graph, Rows, Variable, ops, worker_task
from runner.engine.graph.rows import mapped, tensor_of
from runner.strategies.base import Workload
from runner.strategies.clients import program
from runner.strategies.collectives import Combine, exchange
from runner.strategies.replica import Gradients, Replica, batch_metrics, shares, summed, total_of
from runner.strategies.servers import ReadVariables, ServedVariables, Server, update_served
from runner.strategies.synchronous.batch_statistics import Compute


def with_collective(workload: Workload, workers: int, combine: Combine, bucket_bytes: int, compute: Compute) -> Program:
    """Return the program of replicas whose gradients are summed by a collective; each replica makes the same update.

    K workers make K forward and backward passes, one collective per bucket of gradients (see ``exchange``), K updates.
    """
    graph = Graph()
    devices = [worker_task(k) for k in range(workers)]
    replicas = [Replica(graph, workload, device=d, prefix=f"replica_{k}") for k, d in enumerate(devices)]
    computed = compute(replicas, shares(workload.batch_size, workers))
    graph = replicas[0].graph
    totals = exchange(graph, computed, devices, combine, bucket_bytes)
    targets: list[str] = []
    for replica, own in zip(replicas, totals, strict=True):
        targets += replica.apply(own.gradients, own.state_updates)
    metrics = batch_metrics(replicas[0], computed)
    return program(graph, replicas, metrics=metrics, targets=targets)


def held_back(replicas: Sequence[Replica], computed: Sequence[Gradients]) -> list[Gradients]:
    """Delay the gradients and statistics of each worker until it has computed all of them; return the delayed results.

    Each tensor is read through a node that waits for all other tensors of the same worker. Values and bytes on the wire
    do not change. Losses, metrics and statistics that are not summed are not delayed.
    """
    return [_held(*each) for each in zip(replicas, computed, strict=True)]


def _held(replica: Replica, computed: Gradients) -> Gradients:
    graph = replica.graph
    with replica.within("train/held"):
        parts = [mapped(part, lambda each: ops.identity(graph, each, name="there")) for _, part in computed.parts]
        with graph.control_dependencies(tensor_of(part).node for part in parts):
            held = [mapped(part, lambda each: ops.identity(graph, each, name="held")) for part in parts]
    return computed.with_parts(held)


def with_servers(workload: Workload, workers: int, servers: int, compute: Compute, *, lookups: bool) -> Program:
    """Return the program of K workers that read all variables from S servers and send them their gradients.

    Each variable and its optimizer slots are on one server, except that columns of large lookup tables are divided over
    the servers if ``lookups`` is true (:class:`~runner.strategies.servers.ServedVariables`). For such a table, a worker
    sends indices and receives the selected rows. In each step a worker reads every other variable that it needs,
    computes the gradients of its share of the batch and sends each gradient to the server of the variable. This server
    adds the gradients in worker order, ((g0 + g1) + g2) + ..., and applies the optimizer. Servers also keep the moving
    averages of batch normalisation. The statistics of each worker are sent and summed like gradients; if all workers
    have the same statistics, no sum is needed and only the first worker sends them.

    Bytes on the wire in a step, for P trained values (P_j of them on server j) and M statistics of b bytes each: server
    j sends K P_j b and each worker sends (P + M) b, in total K (2 P + M) b. If the statistics need no sum, only the
    first worker sends M b, in total (2 K P + M) b; pooled statistics also need the exchange of
    :func:`~runner.strategies.synchronous.batch_statistics.pool_normalizations`. Only evaluations read moving averages.
    Every worker but the first also sends its loss and its metrics, b each, to the first worker. For clipping by global
    norm, each other server sends b for each of its trained variables to the first server and receives b from it.
    """
    served = ServedVariables(workload, servers, lookups=workload.batch_size // workers if lookups else 0)
    kept = [Server(served.graph, workload, j) for j in range(servers)]
    replicas = [served.replica(k, ReadVariables) for k in range(workers)]
    computed = compute(replicas, shares(workload.batch_size, workers))
    graph = served.graph = replicas[0].graph
    metrics = batch_metrics(replicas[0], computed)

    def total(variable: Variable, parts: Sequence[Gradient]) -> Gradient:
        device = served.device_of(variable)
        with graph.absolute_scope(f"reduce/{variable.name}"), graph.device(device), graph.layer(variable.layer):
            # The identity puts the sum on the server even for one worker, so that nodes that read it are placed there.
            return mapped(total_of(graph, parts), lambda each: ops.identity(graph, each, name="total"))

    columns = zip(*(own.gradients for own in computed), strict=True)
    sums = [
        (part, total(part, [_cut(graph, part, gradient) for _, gradient in column]))
        for column in columns
        for part in served.parts(column[0][0].name)
    ]
    others = [replace(own, gradients=()) for own in computed]
    totals = summed(others, lambda copy, parts: total(served[copy.name], parts))
    with graph.absolute_scope("update"), graph.device(kept[0].device):
        gradients = workload.optimizer.clipped(graph, sums)
    # Statistics that need no sum are equal on all workers; the first sends them.
    averages = [*totals.settled, *totals.state_updates]
    targets = update_served(served, kept, gradients, averages)
    return program(graph, replicas, metrics=metrics, targets=targets, variables=served, servers=kept)


def _cut(graph: Graph, variable: Variable, gradient: Gradient) -> Gradient:
    """Return the part of a worker's gradient that belongs to a served variable, cut on the worker."""
    part = variable.part
    if part is None:
        return gradient
    device = graph.nodes[tensor_of(gradient).node].device
    with graph.absolute_scope(f"reduce/{variable.name}"), graph.layer(variable.layer), graph.device(device):
        own = part.cut(graph, tensor_of(gradient))
    return Rows(gradient.indices, own, part.spec) if isinstance(gradient, Rows) else own
