"""A strategy of one's own: local SGD (Stich 2019, "Local SGD Converges Fast and Communicates Little")."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.engine import ops
from runner.engine.conductor import Array, Clients, Conductor
from runner.engine.device import worker_task
from runner.engine.graph import Graph
from runner.engine.program import Client, Program
from runner.engine.tensor import Tensor
from runner.plugin import Plugin
from runner.strategies.base import Gradients, Replica, Share, Task, ordered_sum, scaled, shares
from runner.strategies.clients import program_of
from runner.strategies.collectives import sharded_reduce
from runner.strategies.settings import require

AVERAGE = "average"
"""The client that lets every replica hold the mean of all replicas' variables."""


@dataclass
class LocalSgd:
    """Each of K workers updates a network of its own by the mean gradient of its share; now and then all are averaged.

    every: steps between averages. Variables and slots of the optimizer are averaged, and 2 (K - 1) times their bytes
    travel for it; ``sync_data`` sends 2 (K - 1) times the bytes of all gradients in every step. An evaluation and a
    checkpoint average too: what is scored and saved is one network, and a run that goes on does so where it was.

    With ``every=1``, shares of one size and an optimizer that is linear in the gradient (sgd, momentum), a step is one
    of ``sync_data``. ``optimizer.clip_norm`` shortens the gradients of each worker by themselves.
    """

    name: str = "local_sgd"
    workers: int = 2
    every: int = 8

    def __post_init__(self) -> None:
        require(self.every >= 1, "every", self.every, "steps between averages, 1 or more")

    def build(self, task: Task) -> Program:
        """Return the program: K training steps beside each other, and an average now and then."""
        graph = Graph()
        replicas = [Replica(graph, task, device=worker_task(k), prefix=f"replica_{k}") for k in range(self.workers)]
        own = shares(task.batch_size, self.workers)
        computed = [each.compute_gradients(share, "train") for each, share in zip(replicas, own, strict=True)]
        train = Client(
            "train",
            fetches={
                "loss": _total(replicas, [each.loss for each in computed], "loss"),
                "accuracy": _total(replicas, [each.accuracy for each in computed], "accuracy"),
            },
            targets=tuple(node for parts in zip(replicas, own, computed, strict=True) for node in _update(*parts)),
            inputs=tuple(slot for each in replicas for slot in each.train_inputs),
            feeds={
                "step": tuple(each.step for each in replicas),
                "learning_rate": tuple(each.learning_rate for each in replicas),
            },
            slowed=True,
        )
        average = Client(AVERAGE, targets=tuple(_average(replicas)), exact=True, per_update=1 / self.every)
        return program_of(graph, replicas, [train, average], conduct=lambda clients: EveryFewSteps(clients, self.every))


class EveryFewSteps(Conductor):
    """Trains, and averages behind every few steps and whenever the network is to be looked at."""

    def __init__(self, clients: Clients, every: int) -> None:
        self._clients = clients
        self._every = every
        self._apart = False

    def update(self, step: int, feeds: Mapping[str, Any]) -> Mapping[str, Array]:
        """Run ``train``, and ``average`` if it is time; see :class:`Conductor`."""
        found = self._clients.run("train", step=step, feeds=feeds)
        self._apart = True
        if (step + 1) % self._every == 0:
            self.settle()
        return found

    def settle(self) -> None:
        """Average, unless that was the last thing done."""
        if self._apart:
            self._clients.run(AVERAGE)
            self._apart = False


def _update(replica: Replica, share: Share, computed: Gradients) -> list[str]:
    """Let a replica learn from its share alone; what was computed is a part of a mean over the whole batch."""
    graph, task = replica.graph, replica.task
    factor = task.batch_size / (share[1] - share[0])

    def of_share(part: Tensor) -> Tensor:
        return scaled(graph, part, factor, task.state_dtype, "of_share")

    with replica.within("update"):
        gradients = [(variable, of_share(part)) for variable, part in computed.gradients]
        statistics = [replace(each, batch_value=of_share(each.batch_value)) for each in computed.state_updates]
    return replica.apply(gradients, statistics)


def _average(replicas: Sequence[Replica]) -> list[str]:
    """Add the mean of every variable and slot, and its assignment to each replica; returns the nodes to run."""
    graph, devices = replicas[0].graph, [each.device for each in replicas]
    targets = []
    for variables in zip(*(each.variables for each in replicas), strict=True):
        sums = sharded_reduce(graph, [each.tensor for each in variables], devices, f"{AVERAGE}/{variables[0].name}")
        for replica, variable, total in zip(replicas, variables, sums, strict=True):
            with replica.within(AVERAGE):
                mean = scaled(graph, total, 1 / len(replicas), variable.spec.dtype, "mean")
                targets.append(ops.assign(graph, variable.tensor, mean).node)
    return targets


def _total(replicas: Sequence[Replica], parts: Sequence[Tensor], name: str) -> Tensor:
    """Add the sum of the replicas' parts of a metric, on the first."""
    with replicas[0].within("total"):
        return ordered_sum(replicas[0].graph, parts, name)


plugin = Plugin(strategies={"local_sgd": LocalSgd})
