"""``single``: one device does everything. The oracle every other strategy is compared with."""

from dataclasses import dataclass

from runner.engine.device import worker_device
from runner.engine.graph import Graph
from runner.engine.network import StateUpdate
from runner.engine.program import OneProcess, Program
from runner.strategies.base import Gradients, Replica, Task, ordered_sum, shares
from runner.strategies.clients import program


@dataclass
class Single:
    """One worker, in the user's own process.

    With ``train.microbatches=k`` the batch is computed in k shares whose gradients are summed in share order: the
    arithmetic of ``sync_data`` with k workers, bit for bit.
    """

    name: str = "single"
    workers: int = 1

    def build(self, task: Task) -> Program:
        """Return the program: k forward and backward passes, ordered sums, one update."""
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
        targets = replica.apply(totals, updates)
        return program(graph, [replica], loss=loss, accuracy=accuracy, targets=targets, one_process=OneProcess())


def _total_updates(graph: Graph, computed: list[Gradients]) -> list[StateUpdate]:
    return [
        StateUpdate(
            update.variable,
            ordered_sum(graph, [each.state_updates[i].batch_value for each in computed]),
            update.decay,
        )
        for i, update in enumerate(computed[0].state_updates)
    ]
