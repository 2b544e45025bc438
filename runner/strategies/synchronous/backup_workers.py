"""Synchronous data parallelism with backup workers: in every update the first shares that come count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runner.engine import ops
from runner.engine.device import worker_task
from runner.engine.graph import Graph, LayerStamp
from runner.engine.initializers import Constant
from runner.engine.network import StateUpdate
from runner.engine.program import Client, Program
from runner.engine.tensor import Tensor
from runner.engine.variables import Variable, Variables
from runner.strategies.base import Gradients, Replica, Task, ordered_sum, shares
from runner.strategies.clients import program_of
from runner.strategies.served_copies import Copies
from runner.strategies.synchronous.contributors import Contributors
from runner.strategies.synchronous.first_to_come import (
    APPLY,
    NORM,
    CountedShares,
    FirstToCome,
    counted,
    read_client,
    share_client,
)
from runner.strategies.synchronous.parameter_server import (
    Server,
    advance_served,
    reading_replica,
    shard_by_size,
    specs_of,
    update_served,
)


def backup_workers(
    task: Task, workers: int, backups: int, servers: int, replayed: Mapping[int, Contributors] | None = None
) -> Program:
    """Return the program of m + b workers and S parameter servers, of whose shares m count in every update.

    TensorFlow (OSDI 2016), section 4.4; Chen et al. 2016. A step gives out ceil(B (m + b) / m) examples, B the batch,
    cut into m + b shares as even as possible; what is in a share that does not count is not seen in that pass over the
    data. The servers keep the variables (:func:`~runner.strategies.synchronous.parameter_server.parameter_server`) and,
    of every
    worker, what it sent last. An update sums the m shares that count in worker order, ((g0 + g1) + g2) + ..., as
    ``single`` does with these shares as microbatches, and applies the optimizer. Where m does not divide B the sums
    are multiplied by B over the examples that count.

    Clients, all launched by :class:`~runner.strategies.synchronous.first_to_come.FirstToCome`: ``read_k`` copies the
    variables
    to worker k, ``share_k`` computes its share and sends it to the servers, ``apply`` makes the update; ``norm`` comes
    before it where gradients of several servers are clipped together. replayed: step -> whose shares count; None: the
    first that come.

    Bytes on the wire, values of b bytes, P of them trained and M statistics: P b for each reading and (P + M + 2) b
    for each share, the 2 for loss and accuracy; so where all keep pace (m + b) (2 P + M + 2) b in an update. Clipping
    takes b from each trained variable that is not on the first server, to that server, and b from there to each other
    server. Servers hold (m + b) (P + M + 2) b more than without backup workers, and workers P b.

    Raises ConfigError where there are more servers than variables.
    """
    graph = Graph()
    served = Variables(graph, seed=task.seed)
    kept = [Server(graph, task, j) for j in range(servers)]
    given_out = -(-task.batch_size * (workers + backups) // workers)
    cut = shares(given_out, workers + backups)
    placed = {name: kept[j].device for name, j in shard_by_size(specs_of(task), servers).items()}
    copying = [_Copying(task, k, served, placed) for k in range(len(cut))]
    inboxes = [_Inbox(task, k, served, kept[0].device) for k in range(len(cut))]
    sent = [
        inbox.keep(each.replica.compute_gradients(share, "train"))
        for each, inbox, share in zip(copying, inboxes, cut, strict=True)
    ]
    counts = CountedShares(task.batch_size, workers, tuple(hi - lo for lo, hi in cut), task.state_dtype)
    training = [
        *(_share(each, inbox, replayed) for each, inbox in zip(copying, inboxes, strict=True)),
        *(_read(each, replayed) for each in copying),
        *_update(graph, task, served, kept, sent, counts),
    ]
    return program_of(
        graph,
        [reading_replica(task, k, served, placed, "scorer") for k in range(len(cut))],
        training,
        variables=served,
        servers=servers,
        scratch=[inbox.variables for inbox in inboxes],
        conduct=lambda clients: FirstToCome(
            clients, counts, clips=NORM in {c.name for c in training}, replayed=replayed
        ),
        examples=given_out,
        replayed_steps=None if replayed is None else len(replayed),
    )


class _Copying:
    """One worker: a replica on copies of the variables, so that a late one reads nothing that is being updated."""

    def __init__(self, task: Task, index: int, served: Variables, placed: Mapping[str, str]) -> None:
        self.index = index
        device, prefix = worker_task(index), f"replica_{index}"
        self._copies = Copies(served, placed, prefix=prefix, device=device)
        self.replica = Replica(served.graph, task, device=device, prefix=prefix, variables=self._copies)

    def reads(self) -> list[str]:
        """Add what copies every trained variable from its server; returns the assign nodes to run."""
        with self.replica.within("fetch"):
            return self._copies.fetch(self._copies.trainable)


class _Inbox:
    """What the servers keep of one worker's last share, each value beside the variable it is for.

    The next share is not begun before this one has come in whole, so none is written while another is summed.
    """

    def __init__(self, task: Task, index: int, served: Variables, first: str) -> None:
        """first: the device of the first server, which keeps loss and accuracy."""
        self.variables = Variables(served.graph, seed=task.seed, prefix=f"inbox_{index}")
        self.targets: list[str] = []
        self._served = served
        self._first = first

    def keep(self, computed: Gradients) -> Gradients:
        """Add what writes a share down; returns the share as it is read again."""
        return Gradients(
            self._kept("loss", computed.loss, self._first, None),
            self._kept("accuracy", computed.accuracy, self._first, None),
            [(variable, self._beside(variable, gradient)) for variable, gradient in computed.gradients],
            [
                replace(each, batch_value=self._beside(each.variable, each.batch_value))
                for each in computed.state_updates
            ],
        )

    def _beside(self, variable: Variable, value: Tensor) -> Tensor:
        return self._kept(variable.name, value, self._served.device_of(self._served[variable.name]), variable.layer)

    def _kept(self, name: str, value: Tensor, device: str, layer: LayerStamp | None) -> Tensor:
        graph = self._served.graph
        spec = graph.spec(value)
        inbox = self.variables.get(name, spec, Constant(0.0), trainable=False, layer=layer, device=device)
        with graph.absolute_scope(f"{self.variables.prefix}/keep/{name}"), graph.device(device), graph.layer(layer):
            self.targets.append(ops.assign(graph, inbox.tensor, value).node)
        return inbox.tensor


class _Choice:
    """On one server: whose shares count, which it is told in every update."""

    def __init__(self, graph: Graph, server: Server, counts: CountedShares) -> None:
        self._graph = graph
        self._device = server.device
        self.scale: Tensor | None = None
        with graph.absolute_scope(f"{server.scope}/counted"), graph.device(server.device):
            self.workers = [ops.placeholder(graph, (), "int64", name=counted(i)) for i in range(counts.counted)]
            if not counts.even:
                self.scale = ops.placeholder(graph, (), counts.dtype, name="scale")

    def total(self, name: str, parts: Sequence[Tensor], layer: LayerStamp | None = None) -> Tensor:
        """Add the sum of the parts that count, in worker order; parts: of every worker."""
        graph = self._graph
        with graph.absolute_scope(f"reduce/{name}"), graph.device(self._device), graph.layer(layer):
            total = ordered_sum(graph, [self._counted(i, parts) for i in range(len(self.workers))])
            return total if self.scale is None else ops.mul(graph, total, self.scale)

    def _counted(self, position: int, parts: Sequence[Tensor]) -> Tensor:
        """Of the parts that count the one at a position: of b more workers than count, that of one of b + 1.

        The others are passed by, not multiplied by zero: they may be anything, not finite too.
        """
        graph, chosen = self._graph, parts[position]
        backups = len(parts) - len(self.workers)
        for k in range(position + 1, position + backups + 1):
            here = ops.equal(graph, self.workers[position], ops.fill(graph, k, (), "int64"))
            chosen = ops.select(graph, here, parts[k], chosen)
        return chosen


def _read(each: _Copying, replayed: Mapping[int, Contributors] | None) -> Client:
    return Client(
        read_client(each.index),
        targets=tuple(each.reads()),
        deferred=True,
        slowed=True,
        per_update=_begun(each.index, replayed),
    )


def _share(each: _Copying, inbox: _Inbox, replayed: Mapping[int, Contributors] | None) -> Client:
    return Client(
        share_client(each.index),
        targets=tuple(inbox.targets),
        inputs=tuple(each.replica.train_inputs),
        feeds={"step": (each.replica.step,)},
        deferred=True,
        per_update=_begun(each.index, replayed),
    )


def _begun(worker: int, replayed: Mapping[int, Contributors] | None) -> float:
    """In which part of the updates a worker begins its share: all where it keeps pace, or those it is replayed in."""
    if replayed is None:
        return 1.0
    return sum(worker in contributors for contributors in replayed.values()) / len(replayed)


def _update(
    graph: Graph,
    task: Task,
    served: Variables,
    servers: Sequence[Server],
    sent: Sequence[Gradients],
    counts: CountedShares,
) -> list[Client]:
    """Add the sums of the shares that count and the update by them; returns the clients that run it, in order."""
    choices = {server.device: _Choice(graph, server, counts) for server in servers}
    first = choices[servers[0].device]
    sums, statistics = _sums(served, choices, sent)
    with graph.absolute_scope("update"), graph.device(servers[0].device):
        factor = task.optimizer.clip_factor(graph, sums)
        gradients = sums if factor is None else task.optimizer.shortened(graph, sums, factor)
    chosen = _fed_choice([*choices.values()], counts)
    fed = {
        **chosen,
        "step": tuple(each.step for each in servers),
        "learning_rate": tuple(each.learning_rate for each in servers),
    }
    apply = Client(
        APPLY,
        fetches={
            "loss": first.total("loss", [each.loss for each in sent]),
            "accuracy": first.total("accuracy", [each.accuracy for each in sent]),
        },
        targets=(
            *update_served(graph, task, served, servers, gradients),
            *advance_served(graph, served, statistics),
        ),
        feeds=fed,
        deferred=True,
    )
    if factor is None or len(servers) == 1:
        return [apply]
    # The norm needs squares of all servers, and all servers need the norm: one client for each way.
    norm = Client(NORM, fetches={"clip_factor": factor}, feeds=chosen, deferred=True)
    return [norm, replace(apply, feeds={**fed, "clip_factor": (factor,)})]


def _fed_choice(choices: Sequence[_Choice], counts: CountedShares) -> dict[str, tuple[Tensor, ...]]:
    """What every server is told of the shares that count, by the name it is fed under."""
    fed = {counted(i): tuple(each.workers[i] for each in choices) for i in range(counts.counted)}
    if not counts.even:
        fed["scale"] = tuple(each.scale for each in choices if each.scale is not None)
    return fed


def _sums(
    served: Variables, choices: Mapping[str, _Choice], sent: Sequence[Gradients]
) -> tuple[list[tuple[Variable, Tensor]], list[StateUpdate]]:
    """Add the sum of every gradient and every statistic, each on the server of its variable."""

    def total(variable: Variable, parts: Sequence[Tensor]) -> Tensor:
        return choices[served.device_of(variable)].total(variable.name, parts, variable.layer)

    sums = []
    for i, (copy, _) in enumerate(sent[0].gradients):
        variable = served[copy.name]
        sums.append((variable, total(variable, [own.gradients[i][1] for own in sent])))
    statistics = []
    for i, update in enumerate(sent[0].state_updates):
        parts = [own.state_updates[i].batch_value for own in sent]
        statistics.append(replace(update, batch_value=total(served[update.variable.name], parts)))
    return sums, statistics
