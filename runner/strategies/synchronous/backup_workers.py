"""Synchronous data parallelism with backup workers: each update sums only the shares that arrive first."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner.engine.compile.program import Client, Program
from runner.engine.graph import Constant, Gradient, Graph, LayerStamp, Tensor, Variable, Variables, ops
from runner.engine.graph.rows import dense
from runner.optimizers.base import shortened
from runner.strategies.base import Workload
from runner.strategies.clients import client_name, program_of
from runner.strategies.replica import Gradients, Replica, Share, ordered_sum, summed
from runner.strategies.servers import CopiedVariables, ReadVariables, ServedVariables, Server, update_served
from runner.strategies.synchronous.first_arrivals import APPLY, NORM, CountedShares, contributors_of, worker_feed


def with_backup_workers(
    workload: Workload, needed: int, cut: Sequence[Share], servers: int, replay: str | None
) -> Program:
    """Return the program of m + b workers and S parameter servers, in which every update sums m of the shares.

    needed: m. cut: each worker's share. replay: file that names the shares that count in each step; None for the first
    that arrive. Raises ConfigError if there are more servers than variables, or if the file does not fit the run.

    Sources: TensorFlow (OSDI 2016), section 4.4; Chen et al. 2016. For a batch size B, a step hands out
    ceil(B (m + b) / m) examples, cut into m + b shares of nearly equal size; the examples of a share that does not
    count are not seen in that pass over the data. The servers keep the variables
    (:func:`~runner.strategies.synchronous.programs.with_servers`) and the last share that each worker sent. An update
    sums the m shares that count in worker order, ((g0 + g1) + g2) + ..., as ``single`` does with these shares as
    microbatches, and applies the optimizer. If m does not divide B, the sums are multiplied by B and divided by the
    number of examples that count.

    Clients, all started by :class:`~runner.strategies.synchronous.first_arrivals.FirstArrivals`: ``read_k`` copies the
    variables to worker k, ``share_k`` computes the worker's share and sends it to the servers, ``apply`` makes the
    update; ``norm`` runs before ``apply`` if gradients of several servers are clipped together.

    Bytes on the wire, for P trained values and M statistics of v bytes each: P v for each run of ``read_k`` and
    (P + M + 2) v for each share, with the loss and one metric. If no worker is late, an update sends
    (m + b) (2 P + M + 2) v. Clipping sends v to the first server for each trained variable on another server, and v
    back to each other server. Extra memory: (m + b) (P + M + 2) v bytes on the servers and P v on each worker.
    """
    replayed = None if replay is None else contributors_of(Path(replay), needed, len(cut) - needed)
    # The fraction of updates in which each worker begins a share.
    recorded = [*(replayed or {}).values()]
    begun = [sum(k in each for each in recorded) / len(recorded) if recorded else 1.0 for k in range(len(cut))]
    served = ServedVariables(workload, servers, carries=False)
    kept = [Server(served.graph, workload, j) for j in range(servers)]
    copies = [served.replica(k, CopiedVariables) for k in range(len(cut))]
    inboxes = [_Inbox(served, k, kept[0].device) for k in range(len(cut))]
    sent = [
        inbox.keep(replica.compute_gradients(share, "train"))
        for replica, inbox, share in zip(copies, inboxes, cut, strict=True)
    ]
    counts = CountedShares(
        workload.batch_size, needed, tuple(hi - lo for lo, hi in cut), workload.state_dtype, replayed=replayed
    )
    training = [
        *(_share(k, replica, inboxes[k], begun[k]) for k, replica in enumerate(copies)),
        *(_read(k, replica, begun[k]) for k, replica in enumerate(copies)),
        *_update(served, kept, sent, counts),
    ]
    return program_of(
        served.graph,
        [served.replica(k, ReadVariables, "scorer") for k in range(len(cut))],
        training,
        variables=served,
        servers=servers,
        scratch=[inbox.variables for inbox in inboxes],
        step_driver=replace(counts, clips=NORM in {each.name for each in training}),
    )


class _Inbox:
    """The results of one worker's last share on the servers, each value on the server of its variable.

    A worker whose share counts begins its next share after the update, so no value changes while it is summed.
    """

    def __init__(self, served: ServedVariables, index: int, first: str) -> None:
        """first: the device of the first server, which keeps loss and metrics."""
        self.variables = Variables(served.graph, seed=served.seed, prefix=f"inbox_{index}")
        self.targets: list[str] = []
        self._served = served
        self._first = first

    def keep(self, computed: Gradients) -> Gradients:
        """Add nodes that store the results of a share; return the stored results. The rows of tables become tensors."""
        values = [(variable, dense(self._served.graph, part)) for variable, part in computed.parts]
        stored = computed.with_parts([self._kept(variable.name, value, variable) for variable, value in values])
        return replace(stored, metrics={name: self._kept(name, each) for name, each in computed.metrics.items()})

    def _kept(self, name: str, value: Tensor, of: Variable | None = None) -> Tensor:
        """Keep a value on the server of a variable, or on the first server."""
        graph, layer = self._served.graph, None if of is None else of.layer
        device = self._first if of is None else self._served.device_of(self._served[of.name])
        spec = graph.spec(value)
        inbox = self.variables.get(name, spec, Constant(0.0), trainable=False, layer=layer, device=device)
        with graph.absolute_scope(f"{self.variables.prefix}/keep/{name}"), graph.device(device), graph.layer(layer):
            self.targets.append(ops.assign(graph, inbox.tensor, value).node)
        return inbox.tensor


class _Choice:
    """Placeholders on one server for the numbers of the workers whose shares count in an update, and for the scale."""

    def __init__(self, graph: Graph, server: Server, counts: CountedShares) -> None:
        self._graph = graph
        self._device = server.device
        names = [worker_feed(i) for i in range(counts.counted)]
        with graph.absolute_scope(f"{server.scope}/counted"), graph.device(server.device):
            self.fed = {name: ops.placeholder(graph, (), "int64", name=name) for name in names}
            self._workers = [*self.fed.values()]
            if not counts.even:
                self.fed["scale"] = ops.placeholder(graph, (), counts.dtype, name="scale")

    def total(self, name: str, parts: Sequence[Gradient], layer: LayerStamp | None = None) -> Tensor:
        """Add the sum of the parts that count, in worker order. parts: one tensor per worker."""
        graph = self._graph
        with graph.absolute_scope(f"reduce/{name}"), graph.device(self._device), graph.layer(layer):
            kept = [dense(graph, part) for part in parts]
            total = ordered_sum(graph, [self._counted(i, kept) for i in range(len(self._workers))])
            return ops.mul(graph, total, self.fed["scale"]) if "scale" in self.fed else total

    def _counted(self, position: int, parts: Sequence[Tensor]) -> Tensor:
        """Return the part at ``position`` among the parts that count; with b backup workers, b + 1 parts are possible.

        The parts that do not count are not multiplied by zero, because they may not be finite.
        """
        graph, chosen = self._graph, parts[position]
        backups = len(parts) - len(self._workers)
        for k in range(position + 1, position + backups + 1):
            here = ops.equal(graph, self._workers[position], ops.fill(graph, k, (), "int64"))
            chosen = ops.select(graph, here, parts[k], chosen)
        return chosen


def _read(index: int, replica: Replica, begun: float) -> Client:
    copies = replica.variables
    assert isinstance(copies, CopiedVariables)
    with replica.within("fetch"):
        targets = tuple(copies.fetch(copies.trainable))
    return Client(client_name("read", index), targets=targets, deferred=True, slowed=True, per_update=begun)


def _share(index: int, replica: Replica, inbox: _Inbox, begun: float) -> Client:
    return Client(
        client_name("share", index),
        targets=tuple(inbox.targets),
        inputs=tuple(replica.train_inputs),
        feeds={"step": (replica.step,)},
        deferred=True,
        per_update=begun,
    )


def _update(
    served: ServedVariables, servers: Sequence[Server], sent: Sequence[Gradients], counts: CountedShares
) -> list[Client]:
    """Add the sums of the shares that count and the update from these sums; return the clients to run, in order."""
    graph, workload = served.graph, served.workload
    choices = {server.device: _Choice(graph, server, counts) for server in servers}
    first = choices[servers[0].device]
    totals = summed(
        sent, lambda copy, parts: choices[served.device_of(served[copy.name])].total(copy.name, parts, copy.layer)
    )
    sums = [(served[copy.name], total) for copy, total in totals.gradients]
    with graph.absolute_scope("update"), graph.device(servers[0].device):
        factor = workload.optimizer.clip_factor(graph, sums)
        gradients = sums if factor is None else shortened(graph, sums, factor)
    chosen = {name: tuple(each.fed[name] for each in choices.values()) for name in first.fed}
    fed = {
        **chosen,
        "step": tuple(each.step for each in servers),
        "learning_rate": tuple(each.learning_rate for each in servers),
    }
    apply = Client(
        APPLY,
        fetches={name: first.total(name, [each.metrics[name] for each in sent]) for name in sent[0].metrics},
        targets=tuple(update_served(served, servers, gradients, totals.state_updates)),
        feeds=fed,
        deferred=True,
    )
    if factor is None or len(servers) == 1:
        return [apply]
    # The norm needs squares from all servers, and all servers need the norm, so there are two clients.
    norm = Client(NORM, fetches={"clip_factor": factor}, feeds=chosen, deferred=True)
    return [norm, replace(apply, feeds={**fed, "clip_factor": (factor,)})]
