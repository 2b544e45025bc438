"""Synchronous data parallelism through a collective: every worker keeps the variables and applies the same update."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.engine.compile.program import Program
from runner.engine.graph import ops
from runner.engine.graph.device import worker_task
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor
from runner.strategies.base import Strategy, Task
from runner.strategies.clients import program
from runner.strategies.exchange import ALL_REDUCE, COMBINES, exchange
from runner.strategies.replica import Gradients, Replica, batch_scores, shares
from runner.strategies.synchronous.batch_statistics import Compute


@dataclass(kw_only=True)
class Collective(Strategy):
    """K replicas; each step their gradients are summed by a collective and every replica applies the same update."""

    name: str = "sync_data"
    combine: str
    bucket_bytes: int
    compute: Compute

    @property
    def sums_by_all_reduce(self) -> bool:
        """Whether ``combine=all_reduce``."""
        return self.combine == ALL_REDUCE

    def build(self, task: Task) -> Program:
        """Return the program: K forward and backward passes, a collective per bucket of gradients, K equal updates."""
        graph = Graph()
        devices = [worker_task(k) for k in range(self.workers)]
        replicas = [Replica(graph, task, device=d, prefix=f"replica_{k}") for k, d in enumerate(devices)]
        computed = self.compute(replicas, shares(task.batch_size, self.workers))
        graph = replicas[0].graph
        totals = exchange(graph, computed, devices, COMBINES[self.combine], self.bucket_bytes)
        targets: list[str] = []
        for replica, own in zip(replicas, totals, strict=True):
            targets += replica.apply(own.gradients, own.state_updates)
        loss, accuracy = batch_scores(replicas[0], computed)
        return program(graph, replicas, loss=loss, accuracy=accuracy, targets=targets)


def held_back(replicas: Sequence[Replica], computed: Sequence[Gradients]) -> list[Gradients]:
    """Return the gradients and statistics of the replicas, held back by control edges until all of a worker exist.

    Each is read through a node that waits for all others of the same worker. Values and bytes on the wire do not
    change. Losses, accuracies and statistics that are not summed are not held back.
    """
    return [_held(*each) for each in zip(replicas, computed, strict=True)]


def _held(replica: Replica, computed: Gradients) -> Gradients:
    graph = replica.graph
    parts = [
        *(gradient for _, gradient in computed.gradients),
        *(each.batch_value for each in computed.state_updates),
    ]
    with graph.absolute_scope(f"{replica.prefix}/train/held"), graph.device(replica.device):
        there = [ops.identity(graph, part, name="there") for part in parts]
        with graph.control_dependencies(tensor.node for tensor in there):
            held = [ops.identity(graph, tensor, name="held") for tensor in there]
    return _with_parts(computed, held)


def _with_parts(computed: Gradients, parts: Sequence[Tensor]) -> Gradients:
    count = len(computed.gradients)
    pairs = [(variable, part) for (variable, _), part in zip(computed.gradients, parts[:count], strict=True)]
    updates = [
        replace(each, batch_value=part) for each, part in zip(computed.state_updates, parts[count:], strict=True)
    ]
    return replace(computed, gradients=pairs, state_updates=updates)
