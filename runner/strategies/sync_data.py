"""``sync_data``: synchronous data parallelism. Every worker holds the network and computes its share of each batch."""

from collections.abc import Sequence
from dataclasses import dataclass

from runner.engine.device import worker_device
from runner.engine.graph import Graph
from runner.engine.network import StateUpdate
from runner.engine.program import Program
from runner.engine.tensor import Tensor
from runner.engine.variables import Variable
from runner.errors import ConfigError
from runner.strategies.base import Gradients, Replica, Task, ordered_sum, program, shares
from runner.strategies.collectives import combine_bucket, in_buckets, ring_all_reduce, sharded_reduce

COMBINES = {"sharded_reduce": sharded_reduce, "ring_all_reduce": ring_all_reduce}


@dataclass
class SyncData:
    """K replicas; each step their gradients are summed and every replica applies the same update.

    combine: how gradients meet. ``sharded_reduce``: each worker owns 1/K of every gradient, sums it from the others
    in worker order and broadcasts the result (Krizhevsky 2014, section 4). ``ring_all_reduce``: slices go round a ring
    of workers twice, to be summed and to be known; with three workers and more the order of a sum is that of the ring,
    not that of the workers.
    bucket_bytes: neighbouring gradients travel together up to so many bytes; the exchange of a bucket starts as soon
    as its last gradient exists. Statistics travel with the gradients that come last.

    Batch-normalisation statistics are those of each worker's share; the moving averages advance by the mean of the
    shares' statistics, weighted by size, so replicas stay equal.
    """

    name: str = "sync_data"
    workers: int = 2
    combine: str = "sharded_reduce"
    bucket_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        if self.combine not in COMBINES:
            raise ConfigError(f"parallelism.combine={self.combine!r}: expected one of {', '.join(sorted(COMBINES))}")
        if self.bucket_bytes < 0:
            raise ConfigError(f"parallelism.bucket_bytes={self.bucket_bytes}: expected a number of bytes, 0 or more")

    def build(self, task: Task) -> Program:
        """Return the program: K forward and backward passes, a collective per gradient, K equal updates."""
        graph = Graph()
        devices = [worker_device(k) for k in range(self.workers)]
        replicas = [Replica(graph, task, device=d, prefix=f"replica_{k}") for k, d in enumerate(devices)]
        computed = [
            replica.compute_gradients(share, "train")
            for replica, share in zip(replicas, shares(task.batch_size, self.workers), strict=True)
        ]
        # Gradients are exchanged in the order backpropagation yields them: from the last layer to the first.
        # Statistics go with the last of them: they exist earlier, but a message of their own would cost more.
        backward = [list(reversed(each.gradients)) for each in computed]
        sums = self._combined(
            graph,
            [*(variable for variable, _ in backward[0]), *(each.variable for each in computed[0].state_updates)],
            [
                [*(gradient for _, gradient in pairs), *(each.batch_value for each in own.state_updates)]
                for pairs, own in zip(backward, computed, strict=True)
            ],
            devices,
        )
        targets: list[str] = []
        for k, replica in enumerate(replicas):
            gradients, statistics = sums[k][: len(backward[k])], sums[k][len(backward[k]) :]
            pairs = [(variable, total) for (variable, _), total in zip(backward[k], gradients, strict=True)]
            targets += replica.apply(pairs[::-1], _updates_of(computed[k], statistics))
        return program(
            graph,
            replicas,
            loss=_first_sums(graph, devices[0], [c.loss for c in computed], "loss"),
            accuracy=_first_sums(graph, devices[0], [c.accuracy for c in computed], "accuracy"),
            targets=targets,
        )

    def _combined(
        self, graph: Graph, of: Sequence[Variable], parts: Sequence[Sequence[Tensor]], devices: Sequence[str]
    ) -> list[list[Tensor]]:
        """Sum tensor i of all workers, parts[k][i], for every i; returns the sums as every worker holds them.

        of: the variable each tensor belongs to; a bucket is called after its first and stamped with its layer.
        """
        sums: list[list[Tensor]] = [[] for _ in devices]
        sizes = [graph.spec(tensor).nbytes for tensor in parts[0]]
        for bucket in in_buckets(sizes, self.bucket_bytes):
            first, members = of[bucket.start], [[own[i] for i in bucket] for own in parts]
            with graph.layer(first.layer):
                totals = combine_bucket(graph, members, devices, first.name, COMBINES[self.combine])
            for own, total in zip(sums, totals, strict=True):
                own += total
        return sums


def _updates_of(computed: Gradients, statistics: Sequence[Tensor]) -> list[StateUpdate]:
    return [
        StateUpdate(update.variable, statistic, update.decay)
        for update, statistic in zip(computed.state_updates, statistics, strict=True)
    ]


def _first_sums(graph: Graph, device: str, parts: Sequence[Tensor], name: str) -> Tensor:
    """Metrics are summed by the first worker: the master computes nothing."""
    with graph.device(device), graph.absolute_scope("train/total"):
        return ordered_sum(graph, parts, name)
