"""``single``: one device does everything. The oracle every other strategy is compared with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.engine.conductor import Clients, Conductor
from runner.engine.device import worker_device
from runner.engine.graph import Graph
from runner.engine.network import StateUpdate
from runner.engine.program import TRAIN, Program
from runner.engine.tensor import Tensor
from runner.optimizers.lbfgs import Lbfgs
from runner.strategies.base import Gradients, Replica, Task, ordered_sum, shares
from runner.strategies.clients import program
from runner.strategies.minimising import LbfgsConductor, WholeBatch
from runner.strategies.vectors import Vectors, require_no_averages


@dataclass
class Single:
    """One worker, in the user's own process.

    With ``train.microbatches=k`` the batch is computed in k shares whose gradients are summed in share order: the
    arithmetic of ``sync_data`` with k workers, bit for bit. With ``optimizer=lbfgs`` an update evaluates its batch
    several times, by the client ``train``: it stores the gradient instead of applying it.
    """

    name: str = "single"
    workers: int = 1

    def build(self, task: Task) -> Program:
        """Return the program: k forward and backward passes, ordered sums, one update.

        Raises ConfigError where batch normalisation meets ``optimizer=lbfgs``.
        """
        graph = Graph()
        replica = Replica(graph, task, device=worker_device(0))
        computed = [
            replica.compute_gradients(share, f"train/share_{k}" if task.microbatches > 1 else "train")
            for k, share in enumerate(shares(task.batch_size, task.microbatches))
        ]
        with graph.device(replica.device), graph.absolute_scope("train/total"):
            loss = ordered_sum(graph, [each.loss for each in computed], "loss")
            accuracy = ordered_sum(graph, [each.accuracy for each in computed], "accuracy")
            totals = [
                (variable, ordered_sum(graph, [each.gradients[i][1] for each in computed]))
                for i, (variable, _) in enumerate(computed[0].gradients)
            ]
            updates = _total_updates(graph, computed)
        if isinstance(task.optimizer, Lbfgs):
            require_no_averages(updates)
            return _minimising(task.optimizer, replica, loss, accuracy, [total for _, total in totals])
        targets = replica.apply(totals, updates)
        return program(graph, [replica], loss=loss, accuracy=accuracy, targets=targets)


def _minimising(
    optimizer: Lbfgs, replica: Replica, loss: Tensor, accuracy: Tensor, totals: Sequence[Tensor]
) -> Program:
    """The program whose ``train`` evaluates a batch, with the clients of L-BFGS."""
    graph = replica.graph
    vectors = Vectors(graph, replica.variables, optimizer.history)
    objective = vectors.objective(optimizer, totals)
    commands = {client.name: client for client in vectors.clients(deferred=False)}
    plain = program(graph, [replica], loss=loss, accuracy=accuracy, targets=objective.targets)
    train = plain.clients[TRAIN]
    evaluating = replace(train, fetches={**train.fetches, **objective.penalties})
    trained = [variable.name for variable in vectors.trained]

    def conduct(clients: Clients) -> Conductor:
        evaluator = WholeBatch(clients, list(objective.penalties))
        return LbfgsConductor(evaluator, optimizer, trained, replica.task.state_dtype)

    return replace(plain, clients={**plain.clients, TRAIN: evaluating, **commands}, conduct=conduct)


def _total_updates(graph: Graph, computed: list[Gradients]) -> list[StateUpdate]:
    return [
        StateUpdate(
            update.variable,
            ordered_sum(graph, [each.state_updates[i].batch_value for each in computed]),
            update.decay,
        )
        for i, update in enumerate(computed[0].state_updates)
    ]
