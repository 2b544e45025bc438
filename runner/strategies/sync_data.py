"""``sync_data``: synchronous data parallelism. Every worker holds the network and computes its share of each batch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from runner.bounds import BytesOrZero, SmallCount, SmallCountOrZero
from runner.engine.compile.program import Program
from runner.errors import ConfigError, require_one_of
from runner.strategies.base import PER_HOST, Processes, Race, Strategy, TrainingFacts, Workload
from runner.strategies.collectives import ALL_REDUCE, COMBINES, HIERARCHICAL, Combine, collective
from runner.strategies.replica import Gradients, Replica, Share, shares
from runner.strategies.synchronous.backup_workers import with_backup_workers
from runner.strategies.synchronous.batch_statistics import STATISTICS, compute_gradients
from runner.strategies.synchronous.first_arrivals import CONTRIBUTORS
from runner.strategies.synchronous.programs import held_back, with_collective, with_servers

_PARAMETER_SERVER = "parameter_server"


@dataclass
class SyncData(Strategy):
    """K workers; in each step the gradients of their shares are summed, and all copies receive the same update.

    combine: the way in which gradients are summed. ``sharded_reduce``: each worker owns 1/K of every gradient, sums
    this slice over all workers in worker order and broadcasts the sum (Krizhevsky 2014, section 4.1); if K = 2,
    workers exchange whole gradients.
    ``ring_all_reduce``: slices go round a ring of workers twice, first to be summed and then to be distributed; with
    three workers or more, sums follow the order of the ring, not of the workers.
    ``all_reduce``: every worker reads the gradients of all workers and sums them in worker order, which sends more
    bytes than other collectives if K > 2; if each worker has a separate GPU, NCCL sums instead, in its own order with
    three workers or more (:mod:`runner.engine.compile.passes.lower_collectives`; not yet run on several GPUs).
    ``hierarchical``: the workers of each host sum their gradients, then the hosts exchange these sums. Every
    ``workers_per_host`` consecutive workers count as one host, wherever they run. Sums follow the order of hosts.
    ``parameter_server``: ``servers`` separate processes keep the variables, sum gradients in worker order and apply
    them (:func:`~runner.strategies.synchronous.programs.with_servers`).
    workers_per_host: number of workers of each host for ``hierarchical``; must be null for other values of ``combine``.
    servers: number of parameter servers, 1 by default; must be null for other values of ``combine``.
    bucket_bytes: neighbouring gradients share a message (bucket) of at most this size; a larger gradient has a separate
    bucket; with 0, every gradient has a separate bucket. The last buckets are smaller
    (:func:`~runner.strategies.collectives.in_buckets`). The exchange of a bucket starts as soon as its last gradient
    exists. Statistics are sent with the last gradients. Buckets do not depend on the speed of links, so that the sums
    of a ring are equal bit for bit on a slower, faster or emulated network. Parameter servers receive every gradient as
    a separate message.
    overlap: whether gradients are sent during the backward pass. If False, a worker sends no gradient before all its
    gradients exist, as a baseline for measurements; results are equal bit for bit.

    statistics: the mean and variance that batch normalisation uses; replicas stay equal in every case. ``shares``: each
    share uses its own statistics; the moving averages use the mean of these statistics, weighted by share size.
    ``first_worker``: each share uses its own statistics; the moving averages are updated with the first worker's
    statistics, with the decay raised to the power of the number of workers (Inception v3 guide). ``pooled``: the
    statistics of the whole batch, exchanged during the forward and the backward pass; only with this option does a
    network with batch normalisation have the results of ``single``.

    backup_workers: number of processes in addition to ``workers``, for ``combine=parameter_server``. In every step the
    first ``workers`` arriving shares count and the others are dropped
    (:func:`~runner.strategies.synchronous.backup_workers.with_backup_workers`), so that no update waits for a slow
    worker. A step then hands out batch_size (workers + backup_workers) / workers examples. A pass over the data hands
    out every example once; the examples of dropped shares are not used in that pass. While up to ``backup_workers``
    lost processes are being replaced, updates use the shares of the other workers.
    replay: file ``contributors.jsonl`` of an earlier run of the same configuration. In every step, the same shares
    count as in that run, so that the weights are equal bit for bit.
    """

    order_keys: ClassVar[tuple[str, ...]] = ("replay",)
    keeps_rows: ClassVar[bool] = True
    variants: ClassVar[tuple[Mapping[str, object], ...]] = tuple(
        {"combine": each, **({"workers_per_host": PER_HOST} if each == HIERARCHICAL else {})}
        for each in (*COMBINES, _PARAMETER_SERVER)
    )

    name: str = "sync_data"
    workers: SmallCount = 2
    combine: str = "sharded_reduce"
    workers_per_host: SmallCount | None = None
    servers: SmallCount | None = None
    bucket_bytes: BytesOrZero = 1 << 20
    overlap: bool = True
    statistics: str = "shares"
    backup_workers: SmallCountOrZero = 0
    replay: str | None = None

    def __post_init__(self) -> None:
        require_one_of("parallelism.combine", self.combine, [*COMBINES, _PARAMETER_SERVER])
        if self.combine == _PARAMETER_SERVER:
            self.servers = 1 if self.servers is None else self.servers
        elif self.servers is not None:
            raise ConfigError(
                f"parallelism.servers={self.servers} with parallelism.combine={self.combine}: only "
                f"combine={_PARAMETER_SERVER} has servers; choose it, or set servers to null"
            )
        if self.combine != _PARAMETER_SERVER or self.workers_per_host is not None:
            self._collective()
        require_one_of("parallelism.statistics", self.statistics, STATISTICS)
        self._check_backups()

    @property
    def processes(self) -> Processes:
        return Processes(self.workers + self.backup_workers, self.servers or 0)

    @property
    def worker_keys(self) -> str:
        """The settings that decide the number of worker processes."""
        backups = f" with parallelism.backup_workers={self.backup_workers}" if self.backup_workers else ""
        return f"{super().worker_keys}{backups}"

    @property
    def sums_by_all_reduce(self) -> bool:
        return self.combine == ALL_REDUCE

    @property
    def race(self) -> Race | None:
        """The race between the workers' shares, decided by ``replay`` if set; None without backup workers."""
        return Race("the workers", CONTRIBUTORS, decided=self.replay is not None) if self.backup_workers else None

    @property
    def replayed(self) -> str | None:
        return self.replay

    def replaying(self, record: str) -> Self:
        return replace(self, replay=record)

    def examples_per_update(self, batch_size: int) -> int:
        """Return the number of examples in the shares of all workers, backup workers included."""
        return -(-batch_size * self.processes.workers // self.workers)

    def faults(self, facts: TrainingFacts) -> Iterator[str]:
        """Yield faults, including a lazy optimizer with settings that make the gradients of tables dense."""
        yield from super().faults(facts)
        if facts.optimizer.lazy and (self.backup_workers or self.statistics == "pooled"):
            yield (
                f"optimizer.lazy=true with parallelism.backup_workers={self.backup_workers} and "
                f"parallelism.statistics={self.statistics}: gradients of tables have the size of the table, so all "
                "rows are updated; use optimizer.lazy=false, or backup_workers=0 and statistics=shares"
            )

    def build(self, workload: Workload) -> Program:
        """Return the program for ``combine``. Raises ConfigError if the file ``replay`` does not fit the run."""
        if self.servers is None:
            return with_collective(workload, self.workers, self._collective(), self.bucket_bytes, self._compute)
        if not self.backup_workers:
            # With pooled statistics, the gradient of a table has the size of the table.
            lookups = self.statistics != "pooled"
            return with_servers(workload, self.workers, self.servers, self._compute, lookups=lookups)
        cut = shares(self.examples_per_update(workload.batch_size), self.processes.workers)
        return with_backup_workers(workload, self.workers, cut, self.servers, self.replay)

    def _collective(self) -> Combine:
        return collective(self.combine, self.workers, self.workers_per_host)

    def _compute(self, replicas: Sequence[Replica], shares: Sequence[Share]) -> list[Gradients]:
        computed = compute_gradients(replicas, shares, STATISTICS[self.statistics])
        return computed if self.overlap else held_back(replicas, computed)

    def _check_backups(self) -> None:
        """Raise ConfigError for settings that contradict backup workers, and for ``replay`` without backup workers."""
        setting = f"parallelism.backup_workers={self.backup_workers}"
        conflicts = (
            (
                self.combine != _PARAMETER_SERVER,
                f"combine={self.combine}: a collective needs the gradients of all workers; choose "
                f"combine={_PARAMETER_SERVER}",
            ),
            (
                self.statistics != "shares",
                f"statistics={self.statistics}: these statistics need certain workers in every step, but the "
                "gradient of any worker may be dropped; choose statistics=shares",
            ),
            (
                not self.overlap,
                "overlap=false: with backup workers, gradients are always sent during the backward pass; choose "
                "overlap=true",
            ),
        )
        for conflicting, reason in conflicts:
            if self.backup_workers and conflicting:
                raise ConfigError(f"{setting} with parallelism.{reason}, or backup_workers=0")
        if self.replay is not None and not self.backup_workers:
            raise ConfigError(
                f"parallelism.replay={self.replay} with {setting}: without backup workers, all gradients count, "
                "so there is nothing to replay; set replay to null, or backup_workers to the recorded number"
            )
