"""One copy of a network that computes a batch in parts and sums their gradients."""

from collections.abc import Sequence
from dataclasses import dataclass

from runner.engine.compile.program import Program
from runner.engine.graph.graph import Graph
from runner.engine.graph.network import StateUpdate
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.variables import Variable
from runner.strategies.base import Task
from runner.strategies.clients import program
from runner.strategies.replica import Gradients, Replica, batch_scores, ordered_sum, shares


@dataclass(frozen=True)
class Computed:
    """The results of one copy on a batch: loss, accuracy, gradients and statistics, all summed over its parts."""

    replica: Replica
    loss: Tensor
    accuracy: Tensor
    totals: Sequence[tuple[Variable, Tensor]]
    updates: Sequence[StateUpdate]


def in_microbatches(task: Task, device: str) -> Program:
    """Return the program of one copy: forward and backward passes of all parts, ordered sums, one update.

    device: full name, or a constraint that leaves the choice open.
    """
    return updating(computed_in_parts(task, device))


def updating(computed: Computed) -> Program:
    """Return the program that applies the computed gradients and statistics."""
    replica = computed.replica
    targets = replica.apply(computed.totals, computed.updates)
    return program(replica.graph, [replica], loss=computed.loss, accuracy=computed.accuracy, targets=targets)


def computed_in_parts(task: Task, device: str) -> Computed:
    """Add forward and backward passes of all parts to a new graph, and ordered sums."""
    graph = Graph()
    replica = Replica(graph, task, device=device)
    computed = [
        replica.compute_gradients(share, part_scope(task, k))
        for k, share in enumerate(shares(task.batch_size, task.microbatches))
    ]
    loss, accuracy = batch_scores(replica, computed)
    with graph.device(device), graph.absolute_scope("train/total"):
        totals = [
            (variable, ordered_sum(graph, [each.gradients[i][1] for each in computed]))
            for i, (variable, _) in enumerate(computed[0].gradients)
        ]
        updates = _total_updates(graph, computed)
    return Computed(replica, loss, accuracy, totals, updates)


def part_scope(task: Task, part: int) -> str:
    """Return the scope of the nodes of a part."""
    return f"train/share_{part}" if task.microbatches > 1 else "train"


def _total_updates(graph: Graph, computed: Sequence[Gradients]) -> list[StateUpdate]:
    return [
        StateUpdate(
            update.variable,
            ordered_sum(graph, [each.state_updates[i].batch_value for each in computed]),
            update.decay,
        )
        for i, update in enumerate(computed[0].state_updates)
    ]
