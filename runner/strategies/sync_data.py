"""``sync_data``: synchronous data parallelism. Every worker holds the network and computes its share of each batch."""

from collections.abc import Sequence
from dataclasses import dataclass

from runner.engine.device import worker_device
from runner.engine.graph import Graph
from runner.engine.network import StateUpdate
from runner.engine.program import Program
from runner.engine.tensor import Tensor
from runner.errors import ConfigError
from runner.strategies.base import Gradients, Replica, Task, ordered_sum, program, shares
from runner.strategies.collectives import sharded_reduce

COMBINES = {"sharded_reduce": sharded_reduce}


@dataclass
class SyncData:
    """K replicas; each step their gradients are summed and every replica applies the same update.

    combine: how gradients meet. ``sharded_reduce``: each worker owns 1/K of every gradient, sums it from the others
    in worker order and broadcasts the result (Krizhevsky 2014, section 4). The exchange of a layer starts as soon
    as its gradient exists.

    Batch-normalisation statistics are those of each worker's share; the moving averages advance by the mean of the
    shares' statistics, weighted by size, so replicas stay equal.
    """

    name: str = "sync_data"
    workers: int = 2
    combine: str = "sharded_reduce"

    def __post_init__(self) -> None:
        if self.combine not in COMBINES:
            raise ConfigError(f"parallelism.combine={self.combine!r}: expected one of {', '.join(sorted(COMBINES))}")

    def build(self, task: Task) -> Program:
        """Return the program: K forward and backward passes, a collective per gradient, K equal updates."""
        graph = Graph()
        devices = [worker_device(k) for k in range(self.workers)]
        replicas = [Replica(graph, task, device=d, prefix=f"replica_{k}") for k, d in enumerate(devices)]
        computed = [
            replica.compute_gradients(share, "train")
            for replica, share in zip(replicas, shares(task.batch_size, self.workers), strict=True)
        ]
        combine = COMBINES[self.combine]

        def combined(parts: Sequence[Tensor], name: str) -> list[Tensor]:
            return combine(graph, parts, devices, name)

        # Gradients are exchanged in the order backpropagation yields them: from the last layer to the first.
        totals: dict[str, list[Tensor]] = {}
        for i, (variable, _) in reversed(list(enumerate(computed[0].gradients))):
            with graph.layer(variable.layer):
                totals[variable.name] = combined([c.gradients[i][1] for c in computed], variable.name)
        statistics = [
            combined([c.state_updates[i].batch_value for c in computed], f"{update.variable.name}/statistic")
            for i, update in enumerate(computed[0].state_updates)
        ]
        targets: list[str] = []
        for k, replica in enumerate(replicas):
            pairs = [(variable, totals[variable.name][k]) for variable, _ in computed[k].gradients]
            targets += replica.apply(pairs, _updates_of(computed[k], statistics, k))
        return program(
            graph,
            replicas,
            loss=_first_sums(graph, devices[0], [c.loss for c in computed], "loss"),
            accuracy=_first_sums(graph, devices[0], [c.accuracy for c in computed], "accuracy"),
            targets=targets,
        )


def _updates_of(computed: Gradients, statistics: Sequence[Sequence[Tensor]], k: int) -> list[StateUpdate]:
    return [
        StateUpdate(update.variable, statistic[k], update.decay)
        for update, statistic in zip(computed.state_updates, statistics, strict=True)
    ]


def _first_sums(graph: Graph, device: str, parts: Sequence[Tensor], name: str) -> Tensor:
    """Metrics are summed by the first worker: the master computes nothing."""
    with graph.device(device), graph.absolute_scope("train/total"):
        return ordered_sum(graph, parts, name)
