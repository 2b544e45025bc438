"""``sync_data``: synchronous data parallelism. Every worker holds the network and computes its share of each batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.engine.device import worker_task
from runner.engine.graph import Graph
from runner.engine.program import Program
from runner.engine.tensor import Tensor
from runner.errors import ConfigError
from runner.strategies.base import Gradients, Replica, Share, Task, ordered_sum, shares
from runner.strategies.clients import program
from runner.strategies.settings import require, require_bucket, require_one_of
from runner.strategies.synchronous.backup_workers import backup_workers
from runner.strategies.synchronous.batch_statistics import STATISTICS, compute_gradients
from runner.strategies.synchronous.blocking import held_back
from runner.strategies.synchronous.contributors import contributors_of
from runner.strategies.synchronous.exchange import COMBINES, exchange
from runner.strategies.synchronous.parameter_server import parameter_server

_PARAMETER_SERVER = "parameter_server"


@dataclass
class SyncData:
    """K replicas; each step their gradients are summed and every replica applies the same update.

    combine: how gradients meet. ``sharded_reduce``: each worker owns 1/K of every gradient, sums it from the others
    in worker order and broadcasts the result (Krizhevsky 2014, section 4). ``ring_all_reduce``: slices go round a ring
    of workers twice, to be summed and to be known; with three workers and more the order of a sum is that of the ring,
    not that of the workers.
    ``all_reduce``: every worker reads the gradients of all and sums them in worker order, which is much to send; where
    each has a card of its own NCCL sums instead, in its own order where there are three workers or more
    (:func:`~runner.engine.passes.lower_collectives.lower_collectives`; unproven, no machine with several cards has run
    it).
    ``parameter_server``: the variables are kept, and gradients summed in worker order and applied, by ``servers``
    processes of their own (:func:`~runner.strategies.synchronous.parameter_server.parameter_server`).
    servers: number of parameter servers; null for other combines, 1 where it is left out.
    bucket_bytes: neighbouring gradients travel together up to so many bytes, and up to half of what is left to be
    exchanged (:func:`~runner.strategies.collectives.in_buckets`); the exchange of a bucket starts as soon as its last
    gradient exists. Statistics travel with the gradients that come last. It does not depend on the network, so that
    an emulated one, or a faster one, changes no bit of a ring's sums. Parameter servers are sent every gradient by
    itself.
    overlap: whether gradients travel while the backward pass goes on. False: none leaves a worker before all exist
    there. It is the baseline of measurements; results are equal to the bit.

    statistics: whose mean and variance batch normalisation takes; replicas stay equal under all. ``shares``: each
    worker's own, and the moving averages advance by the mean of the shares' statistics, weighted by size.
    ``first_worker``: each worker's own, and the moving averages advance by the first's alone, with the decay raised to
    the power of the number of workers (Inception v3 guide). ``pooled``: those of the whole batch, exchanged in the
    middle of the forward and of the backward pass; only so a network with batch normalisation equals ``single``.

    backup_workers: processes beside ``workers``. In every step the first ``workers`` shares that come count and the
    others are dropped (:func:`~runner.strategies.synchronous.backup_workers.backup_workers`), so that a slow worker is
    not waited
    for; for ``combine=parameter_server``. A step then gives out batch_size (workers + backup_workers) / workers
    examples, and a pass over the data is as many steps as give out every example once: those of dropped shares are not
    seen in it.
    replay: file ``contributors.jsonl`` of an earlier run of the same configuration, to count the same shares in every
    step and so come to the same bits.
    """

    name: str = "sync_data"
    workers: int = 2
    combine: str = "sharded_reduce"
    servers: int | None = None
    bucket_bytes: int = 1 << 20
    overlap: bool = True
    statistics: str = "shares"
    backup_workers: int = 0
    replay: str | None = None

    def __post_init__(self) -> None:
        require_one_of("combine", self.combine, [*COMBINES, _PARAMETER_SERVER])
        self._settle_servers()
        require_bucket(self.bucket_bytes)
        require_one_of("statistics", self.statistics, STATISTICS)
        self._check_backups()

    def build(self, task: Task) -> Program:
        """Return the program: K forward and backward passes, a collective per gradient, K equal updates.

        Reads the file ``replay`` names; raises ConfigError where it is not what it should be.
        """
        if self.servers is not None and self.backup_workers:
            replayed = None
            if self.replay is not None:
                replayed = contributors_of(Path(self.replay), self.workers, self.backup_workers)
            return backup_workers(task, self.workers, self.backup_workers, self.servers, replayed)
        if self.servers is not None:
            return parameter_server(task, self.workers, self.servers, self._compute)
        graph = Graph()
        devices = [worker_task(k) for k in range(self.workers)]
        replicas = [Replica(graph, task, device=d, prefix=f"replica_{k}") for k, d in enumerate(devices)]
        computed = self._compute(replicas, shares(task.batch_size, self.workers))
        graph = replicas[0].graph
        totals = exchange(graph, computed, devices, COMBINES[self.combine], self.bucket_bytes)
        targets: list[str] = []
        for replica, own in zip(replicas, totals, strict=True):
            targets += replica.apply(own.gradients, own.state_updates)
        return program(
            graph,
            replicas,
            loss=_first_sums(graph, devices[0], [c.loss for c in computed], "loss"),
            accuracy=_first_sums(graph, devices[0], [c.accuracy for c in computed], "accuracy"),
            targets=targets,
        )

    def _compute(self, replicas: Sequence[Replica], shares: Sequence[Share]) -> list[Gradients]:
        computed = compute_gradients(replicas, shares, STATISTICS[self.statistics])
        return computed if self.overlap else held_back(replicas, computed)

    def _settle_servers(self) -> None:
        """Fill in one server where gradients meet at servers; raises ConfigError for a number that makes no sense."""
        if self.combine != _PARAMETER_SERVER:
            if self.servers is not None:
                raise ConfigError(
                    f"parallelism.servers={self.servers} with parallelism.combine={self.combine}: only "
                    f"combine={_PARAMETER_SERVER} has servers; choose it, or set servers to null"
                )
            return
        self.servers = 1 if self.servers is None else self.servers
        require(self.servers >= 1, "servers", self.servers, "1 or more")

    def _check_backups(self) -> None:
        """Raise ConfigError for settings that backup workers make no sense with, or that make none without them."""
        asked = f"parallelism.backup_workers={self.backup_workers}"
        require(self.backup_workers >= 0, "backup_workers", self.backup_workers, "0 or more")
        if self.backup_workers and self.combine != _PARAMETER_SERVER:
            raise ConfigError(
                f"{asked} with parallelism.combine={self.combine}: a collective waits for all workers, so none can be "
                f"left out; choose combine={_PARAMETER_SERVER}, or backup_workers=0"
            )
        if self.backup_workers and self.statistics != "shares":
            raise ConfigError(
                f"{asked} with parallelism.statistics={self.statistics}: they are waited for in every step, and any "
                "worker may be left out; choose statistics=shares, or backup_workers=0"
            )
        if self.backup_workers and not self.overlap:
            raise ConfigError(
                f"{asked} with parallelism.overlap=false: shares are clients of their own, and only whole steps can be "
                "held back; choose overlap=true, or backup_workers=0"
            )
        if self.replay is not None and not self.backup_workers:
            raise ConfigError(
                f"parallelism.replay={self.replay} with {asked}: without backup workers all shares count, and the same "
                "configuration comes to the same bits; set replay to null, or use as many backup workers as that run"
            )


def _first_sums(graph: Graph, device: str, parts: Sequence[Tensor], name: str) -> Tensor:
    """Metrics are summed by the first worker: the master computes nothing."""
    with graph.device(device), graph.absolute_scope("train/total"):
        return ordered_sum(graph, parts, name)
