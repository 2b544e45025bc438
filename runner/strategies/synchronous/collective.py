"""Synchronous data parallelism through a collective: every worker keeps the variables and applies the same update."""

from __future__ import annotations

from dataclasses import dataclass

from runner.engine.compile.program import Program
from runner.engine.graph.device import worker_task
from runner.engine.graph.graph import Graph
from runner.strategies.base import Strategy, Task
from runner.strategies.clients import program
from runner.strategies.exchange import ALL_REDUCE, COMBINES, exchange
from runner.strategies.replica import Replica, batch_scores, shares
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
