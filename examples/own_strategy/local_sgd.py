"""A custom strategy: local SGD (Stich 2019, "Local SGD Converges Fast and Communicates Little")."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.bounds import Count, SmallCount
from runner.engine.compile.program import Client, Program
from runner.engine.graph import Graph, ops, worker_task
from runner.engine.run.step_driver import Rounds
from runner.plugin import Plugin
from runner.strategies.base import Strategy, Workload
from runner.strategies.clients import program_of, train_client
from runner.strategies.collectives import sharded_reduce
from runner.strategies.replica import Replica, batch_metrics, scaled, shares

AVERAGE = "average"
"""The client that sets the variables of every replica to the mean over all replicas."""


@dataclass
class LocalSgd(Strategy):
    """Local SGD: each of K workers updates a separate network, and every few steps all networks are averaged.

    every: number of steps between averages. Averaging the variables and the optimizer's slots sends 2 (K - 1) times
    their bytes; ``sync_data`` sends 2 (K - 1) times the bytes of all gradients in every step. The networks are also
    averaged before an evaluation or a checkpoint, so that one network is scored, saved and resumed.

    With ``every=1``, equal shares and an optimizer that is linear in the gradient (sgd, momentum), a step equals a step
    of ``single``. ``optimizer.clip_norm`` clips the gradients of each worker separately.
    """

    name: str = "local_sgd"
    workers: SmallCount = 2
    every: Count = 8

    def build(self, workload: Workload) -> Program:
        """Return the program: K separate training steps, and a client that averages."""
        graph, own = Graph(), shares(workload.batch_size, self.workers)
        replicas = [
            # Each replica's gradient is the mean over its share, because its workload has the share's batch size.
            Replica(graph, replace(workload, batch_size=hi - lo), device=worker_task(k), prefix=f"replica_{k}")
            for k, (lo, hi) in enumerate(own)
        ]
        computed = [each.compute_gradients(share, "train") for each, share in zip(replicas, own, strict=True)]
        targets: list[str] = []
        for replica, each in zip(replicas, computed, strict=True):
            targets += replica.apply(each.gradients, each.state_updates)
        weights = [(hi - lo) / workload.batch_size for lo, hi in own]
        metrics = batch_metrics(replicas[0], computed, weights)
        train = train_client(replicas, metrics=metrics, targets=targets)
        average = Client(AVERAGE, targets=tuple(_average(replicas)), exact=True, per_update=1 / self.every)
        return program_of(graph, replicas, [train, average], step_driver=Rounds(AVERAGE, self.every))


def _average(replicas: Sequence[Replica]) -> list[str]:
    """Average every variable and slot over the replicas, and assign the mean to each; return the nodes to run."""
    graph, devices = replicas[0].graph, [each.device for each in replicas]
    targets = []
    for variables in zip(*(each.variables for each in replicas), strict=True):
        sums = sharded_reduce(graph, [each.tensor for each in variables], devices, f"{AVERAGE}/{variables[0].name}")
        for replica, variable, total in zip(replicas, variables, sums, strict=True):
            with replica.within(AVERAGE):
                mean = scaled(graph, total, 1 / len(replicas), "mean")
                targets.append(ops.assign(graph, variable.tensor, mean).node)
    return targets


plugin = Plugin(strategies={"local_sgd": LocalSgd})
