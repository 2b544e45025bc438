"""``sandblaster``: L-BFGS with portions of the batch on replicas and shards of the vectors on servers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from runner.bounds import SmallCount
from runner.engine.compile.program import Client, InputSlot, Program
from runner.engine.graph import Tensor, ops
from runner.engine.graph.rows import all_dense
from runner.errors import ConfigError
from runner.optimizers.base import Optimizer
from runner.optimizers.lbfgs import Lbfgs
from runner.strategies.base import Processes, Strategy, TrainingFacts, Workload
from runner.strategies.clients import client_name, program_of
from runner.strategies.lbfgs.dispatcher import GATHER, PortionedMinimisation
from runner.strategies.lbfgs.vectors import Vectors, require_no_averages
from runner.strategies.replica import Replica, ordered_sum, shares
from runner.strategies.servers import CopiedVariables, ReadVariables, ServedVariables


@dataclass
class Sandblaster(Strategy):
    """Sandblaster L-BFGS (Dean et al. 2012, section 4.2): N replicas, S parameter servers and a coordinator.

    The coordinator, which runs in the master and holds no parameters, commands the servers to compute dot products,
    multiples and sums of vectors; each server keeps the vectors' pieces for its variables
    (:func:`~runner.strategies.servers.shard_by_size`). The coordinator commands the replicas to compute portions of the
    batch, N * portions_per_worker in all, of nearly equal size. A free replica gets the next portion; near the end,
    unfinished portions are handed out again, and the first result for a portion counts. See
    :class:`~runner.strategies.lbfgs.dispatcher.Dispatcher`.

    For any assignment of portions, an update equals the update of ``single`` with ``optimizer=lbfgs`` and one
    microbatch per portion, bit for bit if the kernels of both have equal layouts and summation orders, as in float64.

    Bytes on the wire, for P trained values of b bytes each: an evaluation sends the parameters (P b) to each
    participating replica, and a gradient (P b) to the servers for every computed portion: at most (N + N
    portions_per_worker + D) P b in all, for D repeated computations of portions. An iteration makes one evaluation at
    its start, one at each point of its line search, and one more if the best point is not the last. Evaluations of the
    test split read all variables for each batch, P b for each worker. Besides the P values and the vectors of
    :class:`~runner.strategies.lbfgs.vectors.Vectors`, the servers keep one gradient for each portion and one for each
    replica: N (portions_per_worker + 1) P values.
    """

    line_search: ClassVar[bool] = True

    name: str = "sandblaster"
    workers: SmallCount = 2
    servers: SmallCount = 1
    portions_per_worker: SmallCount = 8

    @property
    def processes(self) -> Processes:
        return Processes(self.workers, self.servers)

    def faults(self, facts: TrainingFacts) -> Iterator[str]:
        """Yield faults, including an optimizer other than L-BFGS."""
        yield from super().faults(facts)
        if not facts.optimizer.line_search:
            yield _needs_lbfgs(facts.optimizer)

    def build(self, workload: Workload) -> Program:
        """Return the program of replicas and servers, with the coordinator as step driver.

        Raises ConfigError for an optimizer other than ``lbfgs``, a network with batch normalisation, a batch with fewer
        examples than portions, or more servers than variables.
        """
        count = self.workers * self.portions_per_worker
        if not isinstance(workload.optimizer, Lbfgs):
            raise ConfigError(_needs_lbfgs(workload.optimizer))
        if workload.batch_size < count:
            raise ConfigError(
                f"train.batch_size={workload.batch_size} with {count} portions (parallelism.workers={self.workers} "
                f"times parallelism.portions_per_worker={self.portions_per_worker}): every portion needs an example; "
                f"use a batch of {count} or more, or fewer portions"
            )
        return _Building(workload, workload.optimizer, self.workers, self.servers, count).program()


def _needs_lbfgs(optimizer: Optimizer) -> str:
    return (
        f"optimizer={optimizer.name} with parallelism=sandblaster: expected L-BFGS; use optimizer=lbfgs, or another "
        "strategy"
    )


@dataclass(frozen=True)
class _Computation:
    """The forward and backward passes of a replica over portions of one size."""

    size: int
    inputs: tuple[InputSlot, ...]
    metrics: Mapping[str, Tensor]
    gradients: Sequence[Tensor]


class _Building:
    """A builder of one program."""

    def __init__(self, workload: Workload, optimizer: Lbfgs, workers: int, servers: int, count: int) -> None:
        """count: the number of portions of the batch."""
        self._workload = workload
        self._optimizer = optimizer
        self._servers = servers
        self._portions = shares(workload.batch_size, count)
        self._sizes = [hi - lo for lo, hi in self._portions]
        self._served = ServedVariables(workload, servers)
        self._graph = self._served.graph
        self._replicas = [self._served.replica(k, CopiedVariables) for k in range(workers)]
        self._scorers = [self._served.replica(k, ReadVariables, "scorer") for k in range(workers)]

    def program(self) -> Program:
        """Add the nodes of all clients and return the program."""
        computations = [list(self._computations(replica)) for replica in self._replicas]
        vectors = Vectors(self._graph, self._served, self._optimizer.history)
        # On the servers: a variable for each replica's last gradient, and one for each portion's gradient.
        inboxes, slots = (
            [[vectors.new_like(variable, f"{scope}_{i}") for variable in vectors.trained] for i in range(count)]
            for scope, count in (("inbox", len(self._replicas)), ("portion", len(self._portions)))
        )
        gather = self._gather(vectors, slots)
        clients = [
            *(self._compute(k, each, inboxes[k]) for k, own in enumerate(computations) for each in own),
            *(self._fetch(k) for k in range(len(self._replicas))),
            *(self._keep(k, p, inbox, slot) for k, inbox in enumerate(inboxes) for p, slot in enumerate(slots)),
            gather,
            *vectors.clients(deferred=True),
        ]
        step_driver = PortionedMinimisation(
            self._optimizer,
            [variable.name for variable in vectors.trained],
            self._workload.state_dtype,
            list(gather.fetches),
            len(self._replicas),
            self._sizes,
        )
        served = self._served
        return program_of(
            self._graph, self._scorers, clients, variables=served, servers=self._servers, step_driver=step_driver
        )

    def _computations(self, replica: Replica) -> Iterator[_Computation]:
        """Add the forward and backward passes of a replica, once for every portion size."""
        # For each size, the offset ``begin`` such that each portion p of this size starts at begin + p * size.
        begins = {hi - lo: lo - p * (hi - lo) for p, (lo, hi) in enumerate(self._portions)}
        for size, begin in begins.items():
            known = len(replica.train_inputs)
            found = replica.compute_gradients((begin, begin + size), f"portion_of_{size}")
            require_no_averages(found.state_updates)
            inputs = tuple(replace(slot, parts=len(self._portions)) for slot in replica.train_inputs[known:])
            gradients = [gradient for _, gradient in all_dense(self._graph, found.gradients)]
            yield _Computation(size, inputs, found.metrics, gradients)

    def _compute(self, worker: int, computation: _Computation, inbox: Sequence[Tensor]) -> Client:
        name = client_name("compute", worker, computation.size)
        return Client(
            name,
            fetches=computation.metrics,
            targets=self._assigned(name, inbox, computation.gradients),
            inputs=computation.inputs,
            feeds={"step": (self._replicas[worker].step,)},
            deferred=True,
            slowed=True,
            per_update=self._sizes.count(computation.size) / len(self._replicas),
        )

    def _fetch(self, worker: int) -> Client:
        copies = self._replicas[worker].variables
        values = [self._served[copy.name].tensor for copy in copies]
        name = client_name("fetch", worker)
        return Client(name, targets=self._assigned(name, [copy.tensor for copy in copies], values), deferred=True)

    def _keep(self, worker: int, portion: int, inbox: Sequence[Tensor], slot: Sequence[Tensor]) -> Client:
        name = client_name("keep", worker, portion)
        kept = self._assigned(name, slot, inbox)
        return Client(name, targets=kept, deferred=True, per_update=1 / len(self._replicas))

    def _gather(self, vectors: Vectors, slots: Sequence[Sequence[Tensor]]) -> Client:
        """Return the client that computes the objective's gradient from the sum of all gradients, in portion order."""
        totals = []
        for variable, *parts in zip(vectors.trained, *slots, strict=True):
            device = self._served.device_of(variable)
            with self._graph.absolute_scope(f"{GATHER}/{variable.name}"), self._graph.device(device):
                totals.append(ordered_sum(self._graph, parts))
        objective = vectors.objective(self._optimizer, totals)
        return Client(GATHER, fetches=objective.penalties, targets=objective.targets, deferred=True)

    def _assigned(self, client: str, targets: Sequence[Tensor], values: Sequence[Tensor]) -> tuple[str, ...]:
        with self._graph.absolute_scope(client):
            pairs = zip(targets, values, strict=True)
            return tuple(ops.assign(self._graph, target, value).node for target, value in pairs)
