"""A custom strategy with an outer optimizer: DiLoCo (Douillard et al. 2023, arXiv:2311.08105)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.engine.compile.program import Client, Program
from runner.engine.graph import Expr, Graph, Tensor, Variables, ops, worker_task
from runner.engine.run.step_driver import Rounds
from runner.errors import require
from runner.plugin import Plugin
from runner.strategies.base import Strategy, Workload
from runner.strategies.clients import program_of, train_client
from runner.strategies.collectives import sharded_reduce
from runner.strategies.replica import Gradients, Replica, batch_metrics, scaled, shares

OUTER = "outer"
"""The client that runs an outer step."""


@dataclass
class DiLoCo(Strategy):
    """Local SGD with an outer Nesterov step (Douillard et al. 2023, algorithm 1).

    Each of K workers trains a separate network on its shares with the configured (inner) optimizer. After every
    ``inner_steps`` updates, the mean over the workers of (parameters at the start of the round - parameters now) is the
    gradient of an outer step with Nesterov momentum, which starts from the parameters at the start of the round. Moving
    averages of batch normalisation are averaged. An outer step sends 2 (K - 1) times the bytes of the parameters and
    averages. Evaluations and checkpoints end a round early, so that all workers hold the network that is scored and
    saved.

    The slots of the inner optimizer stay on each worker. A checkpoint holds the first worker's slots, and all workers
    of a resumed run start from them. With one worker, inner_steps=1, outer_lr=1 and outer_momentum=0, a step equals a
    step of ``single`` except for rounding.
    """

    name: str = "diloco"
    workers: int = 2
    inner_steps: int = 20
    outer_lr: float = 0.7
    outer_momentum: float = 0.9

    def __post_init__(self) -> None:
        require(self.inner_steps >= 1, "parallelism.inner_steps", self.inner_steps, "1 or more")
        require(0 < self.outer_lr < 10, "parallelism.outer_lr", self.outer_lr, "a number above 0 and below 10")
        momentum = self.outer_momentum
        require(0 <= momentum < 1, "parallelism.outer_momentum", momentum, "a number from 0 to below 1")

    def build(self, workload: Workload) -> Program:
        """Return the program: K separate training steps, and a client that runs an outer step."""
        graph, own = Graph(), shares(workload.batch_size, self.workers)
        replicas = [
            Replica(graph, replace(workload, batch_size=hi - lo), device=worker_task(k), prefix=f"replica_{k}")
            for k, (lo, hi) in enumerate(own)
        ]
        computed = [each.compute_gradients(share, "train") for each, share in zip(replicas, own, strict=True)]
        # Copies of the parameters at the start of a round. They need no checkpoint, because a checkpoint ends a round.
        anchors = [Variables(graph, seed=workload.seed, prefix=each.prefix, device=each.device) for each in replicas]
        outer = Client(
            OUTER, targets=tuple(self._outer(replicas, computed, anchors)), exact=True, per_update=1 / self.inner_steps
        )
        targets: list[str] = []
        for replica, each in zip(replicas, computed, strict=True):
            targets += replica.apply(each.gradients, each.state_updates)
        weights = [(hi - lo) / workload.batch_size for lo, hi in own]
        metrics = batch_metrics(replicas[0], computed, weights)
        train = train_client(replicas, metrics=metrics, targets=targets)
        return program_of(graph, replicas, [train, outer], scratch=anchors, step_driver=Rounds(OUTER, self.inner_steps))

    def _outer(
        self, replicas: Sequence[Replica], computed: Sequence[Gradients], anchors: Sequence[Variables]
    ) -> list[str]:
        """Build the outer step of each trainable variable, and average moving averages; return the nodes to run."""
        graph, targets = replicas[0].graph, []
        for variables in zip(*([v for v, _ in each.gradients] for each in computed), strict=True):
            starts = [store.copy(variable, "anchor") for store, variable in zip(anchors, variables, strict=True)]
            moved = []
            for replica, start, variable in zip(replicas, starts, variables, strict=True):
                with replica.within(OUTER):
                    moved.append((Expr(graph, start.tensor) - Expr(graph, variable.tensor)).tensor)
            means = _over_workers(replicas, variables[0].name, moved)
            for replica, start, variable, mean in zip(replicas, starts, variables, means, strict=True):
                velocity = replica.variables.slot(variable, "outer_velocity")
                with replica.within(OUTER):
                    g, v = Expr(graph, mean), Expr(graph, velocity.tensor)
                    v = self.outer_momentum * v + g
                    w = Expr(graph, start.tensor) - self.outer_lr * (g + self.outer_momentum * v)
                    assigned = ((velocity, v), (variable, w), (start, w))
                    targets += [ops.assign(graph, each.tensor, value.tensor).node for each, value in assigned]
        for averages in zip(*([update.variable for update in each.state_updates] for each in computed), strict=True):
            means = _over_workers(replicas, averages[0].name, [each.tensor for each in averages])
            for replica, average, mean in zip(replicas, averages, means, strict=True):
                with replica.within(OUTER):
                    targets.append(ops.assign(graph, average.tensor, mean).node)
        return targets


def _over_workers(replicas: Sequence[Replica], name: str, parts: Sequence[Tensor]) -> list[Tensor]:
    """Build the mean of one tensor per worker, computed on every worker; return one mean tensor per worker."""
    graph = replicas[0].graph
    means = []
    for replica, total in zip(
        replicas, sharded_reduce(graph, parts, [each.device for each in replicas], f"{OUTER}/{name}"), strict=True
    ):
        with replica.within(OUTER):
            means.append(scaled(graph, total, 1 / len(replicas), "mean"))
    return means


plugin = Plugin(strategies={"diloco": DiLoCo})
