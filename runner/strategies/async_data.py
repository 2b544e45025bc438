"""``async_data``: asynchronous data parallelism, Downpour SGD (Dean et al. 2012, section 4.1)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from runner.bounds import Count, CountOrZero, SmallCount
from runner.engine.compile.program import Client, Copy, OneProcess, Program, VirtualClock
from runner.errors import ConfigError, require_one_of
from runner.strategies.base import Processes, Race, Strategy, TrainingFacts, Workload
from runner.strategies.clients import action_of, numbers_of, of_worker, program_of
from runner.strategies.downpour.model_replica import ModelReplica
from runner.strategies.downpour.order import Rules
from runner.strategies.downpour.pushed_server import PushedServer, Staleness
from runner.strategies.replica import shares
from runner.strategies.servers import ReadVariables, ServedVariables

LOOPS = ("overlapped", "sequential", "direct")

_TRANSFER_S = 0.1
_PART_S = {"compute": 1.0, "fetch": 0.05, "push": 0.1}
"""Action of a client -> median duration of its parts on the virtual clock, in seconds."""
_SIGMA = 0.5


@dataclass
class AsyncData(Strategy):
    """Model replicas that train independently, and parameter servers that apply each push as it arrives.

    Each server holds a shard: whole variables, distributed by size, and their slots. In its step t, replica k computes
    its share of batch t: batch / workers examples. The training loop counts one update for every ``workers`` finished
    steps of any replicas. Before the run evaluates or ends, it waits for the running steps (at most one per
    replica) and for due pushes. The gradient of a step is the mean over its examples. If the optimizer clips, each
    step's gradient is clipped by its own norm before it is added to the next push; shards never clip. A push is one
    update of its shard, independent of all other pushes, with the learning rate at the time of the push.

    loop: the cycle of a replica. ``overlapped`` (DistBelief): every ``n_fetch`` steps the replica starts a fetch and
    continues with its current copy, which it updates by -lr * gradient, with the rate lr that ``optimizer.rules`` give.
    Every ``n_push`` steps the replica pushes the sum of its gradients. The replica waits only if the previous fetch or
    push has not ended when the next is due.
    ``sequential``: fetch, compute and push one after the other, so that the next fetch sees the replica's own push.
    ``direct`` (TensorFlow whitepaper 2016, section 7): no copy; the replica reads the servers' variables, computes and
    pushes. With one worker and n_fetch = n_push = 1, ``sequential`` and ``direct`` equal ``single`` bit for bit.

    The shards keep the moving averages of batch normalisation. A push contains the summed statistics of its ``n_push``
    steps; a moving average with decay a is updated once, by the mean of the statistics and with decay a ** n_push.

    warmstart_steps: number of updates that the first replica makes alone.
    staleness: see :class:`~runner.strategies.downpour.pushed_server.Staleness`. If stale pushes are dropped, the limit
    must be at least the staleness that a replica's own pushes cause: ceil(n_fetch / n_push) for ``overlapped``,
    otherwise ceil((n_fetch - gcd(n_fetch, n_push)) / n_push).
    virtual_time: the run uses one process and a virtual clock that depends on the seed, and can be repeated bit
    for bit. replay: ``endings-1.jsonl`` of an earlier run of the same configuration, to repeat that run in one process.

    Bytes on the wire, for values of b bytes, P_j trained values and M_j statistics on shard j of S, P and M in all: a
    fetch receives P_j b + 8 from shard j, and a push sends (P_j + M_j) b + 8 to shard j; 8 bytes hold a push count of
    the shard. With ``direct``, a step receives P b + 8 S instead of a fetch. The average per step is
    (P b + 8 S) / n_fetch + ((P + M) b + 8 S) / n_push.

    A checkpoint by time holds the present variables of the shards while the replicas continue; runs whose result does
    not depend on timing have none. Any other checkpoint holds the variables at a time when no fetch or push is running.
    Before it is saved, each replica pushes the gradients that it holds, P_j b + 8 bytes to shard j. Such a push does
    not advance moving averages. After it was saved, and after a resume, all replicas fetch, and each continues with its
    share of the next update's batch. The push count of each shard, which the optimizer and the staleness depend on,
    restarts at updates * workers / n_push. A resumed run in virtual time therefore ends with the weights of the
    uninterrupted run. Two real-time runs of one configuration differ, except with one worker and without overlap; each
    run records the order of its events.

    Raises ConfigError if settings contradict each other or if there are more servers than variables.
    """

    order_keys: ClassVar[tuple[str, ...]] = ("virtual_time", "replay")

    variants: ClassVar[tuple[Mapping[str, object], ...]] = tuple({"servers": each} for each in (1, 2))

    name: str = "async_data"
    workers: SmallCount = 2
    servers: SmallCount = 1
    loop: str = "overlapped"
    n_fetch: Count = 1
    n_push: Count = 1
    warmstart_steps: CountOrZero = 0
    staleness: Staleness = field(default_factory=Staleness)
    virtual_time: bool = False
    replay: str | None = None

    def __post_init__(self) -> None:
        require_one_of("parallelism.loop", self.loop, LOOPS)
        if self.loop == "direct" and (self.n_fetch, self.n_push) != (1, 1):
            raise ConfigError(
                f"parallelism.n_fetch={self.n_fetch} and n_push={self.n_push} with loop=direct: a replica without a "
                "copy reads and pushes in every step; set both to 1, or choose another loop"
            )
        if self.virtual_time and self.replay is not None:
            raise ConfigError(
                f"parallelism.virtual_time=true with replay={self.replay}: a replay follows the order of its record; "
                "set virtual_time to false, or replay to null"
            )
        self._require_own_pushes_kept()

    @property
    def processes(self) -> Processes:
        return Processes(self.workers, self.servers)

    @property
    def race(self) -> Race:
        """The race between replicas; decided in virtual time, in a replay, and with one worker and without overlap."""
        alone = self.workers == 1 and self.loop != "overlapped"
        return Race("the replicas", decided=alone or self.virtual_time or self.replay is not None)

    @property
    def replayed(self) -> str | None:
        return self.replay

    def replaying(self, record: str) -> Self:
        return replace(self, replay=record, virtual_time=False)

    def faults(self, facts: TrainingFacts) -> Iterator[str]:
        """Yield the faults of every strategy, and a fault if the warm start would make all updates."""
        yield from super().faults(facts)
        if facts.total_steps is not None and self.warmstart_steps >= facts.total_steps:
            yield (
                f"parallelism.warmstart_steps={self.warmstart_steps} with {facts.total_steps} updates in all: the "
                "first replica would make all updates alone; use fewer warmstart_steps, or train longer (train.steps, "
                "train.epochs)"
            )

    def build(self, workload: Workload) -> Program:
        """Return the program: each replica has one compute client, and one fetch and one push client per shard."""
        served = ServedVariables(workload, self.servers)
        shards = [PushedServer(served, j, self.staleness) for j in range(self.servers)]
        divided = shares(workload.batch_size, self.workers)
        replicas = [ModelReplica(served, k, share, shards, self._rules) for k, share in enumerate(divided)]
        scorers = [served.replica(k, ReadVariables, "scorer") for k in range(self.workers)]
        training = [client for each in replicas for client in self._training(each, shards)]
        flushes = [each.flush(shards) for each in replicas] if self.n_push > 1 else []
        begun = [*(shard.begin for shard in shards), *(target for each in replicas for target in each.begin)]
        counts = {"applied": tuple(shard.begun_with for shard in shards)}
        begin = Client("begin", targets=tuple(begun), feeds=counts, exact=True)
        clients = [*training, *flushes, begin]
        program = program_of(
            served.graph, scorers, clients, variables=served, servers=self.servers, step_driver=self._rules
        )
        return replace(program, one_process=self._one_process(workload.seed, training))

    def build_for_simulation(self, workload: Workload) -> Program:
        """Return a program with one replica for each size of a share; the clients of other replicas are copies."""
        sizes = [hi - lo for lo, hi in shares(workload.batch_size, self.workers)]
        kept = sorted(set(sizes), reverse=True)
        few = replace(self, workers=len(kept)).build(replace(workload, batch_size=sum(kept)))
        copies = {
            of_worker(client.name, worker): Copy(client, kept.index(size), worker)
            for worker, size in enumerate(sizes)
            for client in few.clients.values()
            if numbers_of(client.name)[:1] == [kept.index(size)]
        }
        clients = {name: client for name, client in few.clients.items() if not numbers_of(name)}
        clients |= {name: replace(copy.client, name=name) for name, copy in copies.items()}
        return replace(few, clients=clients, copies=copies, workers=self.workers, step_driver=self._rules)

    def _require_own_pushes_kept(self) -> None:
        """Raise ConfigError if pushes would be dropped even with a single replica."""
        own, most = self._own_staleness, self.staleness.most_stale
        if most is not None and most < own:
            raise ConfigError(
                f"parallelism.staleness.limit={most} with policy=drop, loop={self.loop}, n_fetch={self.n_fetch} and "
                f"n_push={self.n_push}: up to {own} of a replica's own pushes since its fetch count as staleness, so "
                f"gradients would be dropped even without other replicas; expected {own} or more, or fewer steps "
                "between fetches"
            )

    @property
    def _own_staleness(self) -> int:
        """The largest staleness that a replica's own pushes cause, even with instant transfers.

        The first step after a push is at most n_fetch - gcd(n_fetch, n_push) steps after a fetch, or n_fetch steps with
        ``overlapped``, because the replica computes on the previous copy while it fetches.
        """
        overlapped = self.loop == "overlapped"
        steps = self.n_fetch if overlapped else self.n_fetch - math.gcd(self.n_fetch, self.n_push)
        return math.ceil(steps / self.n_push)

    @property
    def _rules(self) -> Rules:
        return Rules(
            replicas=self.workers,
            shards=self.servers,
            fetches=self.loop != "direct",
            overlaps=self.loop == "overlapped",
            n_fetch=self.n_fetch,
            n_push=self.n_push,
            warmstart_steps=self.warmstart_steps,
            most_ahead=self.staleness.most_ahead,
            most_stale=self.staleness.most_stale,
        )

    def _training(self, replica: ModelReplica, shards: Sequence[PushedServer]) -> list[Client]:
        """Return the clients of a replica; on average, each replica makes one step per update."""
        fetches = [replica.fetch(shard) for shard in shards] if self.loop != "direct" else []
        pushes = [replica.push(shard) for shard in shards]
        return [
            replica.compute,
            *(replace(client, per_update=1 / self.n_fetch) for client in fetches),
            *(replace(client, per_update=1 / self.n_push) for client in pushes),
        ]

    def _one_process(self, seed: int, training: Sequence[Client]) -> OneProcess | None:
        if not self.virtual_time:
            return None if self.replay is None else OneProcess()
        part_s = {client.name: _PART_S[action_of(client.name)] for client in training}
        return OneProcess(VirtualClock(seed, part_s, _SIGMA, _TRANSFER_S))
