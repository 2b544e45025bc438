"""The strategy ``single`` with separate clients for the timed phases of a training step."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.protocol import PHASES
from runner.engine.compile.program import Client, Program
from runner.engine.graph.device import worker_task
from runner.engine.graph.graph import Graph
from runner.strategies.base import Workload
from runner.strategies.clients import program
from runner.strategies.replica import Gradients, Replica
from runner.strategies.single import Single

CLIENTS: Mapping[str, str] = dict(zip(PHASES, ("forward", "gradients", "train"), strict=True))
"""Phase -> its client. All three clients fetch only the loss."""


@dataclass
class TimedSingle(Single):
    """The strategy ``single`` with the three clients of :data:`CLIENTS` over the same nodes."""

    def build(self, workload: Workload) -> Program:
        """Return the program. ``workload.microbatches`` must be 1."""
        graph = Graph()
        replica = Replica(graph, workload, device=worker_task(0))
        computed = replica.compute_gradients((0, workload.batch_size), "train")
        targets = replica.apply(computed.gradients, computed.state_updates)
        whole = program(graph, [replica], metrics=computed.metrics, targets=targets)
        return replace(whole, clients={**whole.clients, **timed_clients(whole, computed)})


def timed_clients(whole: Program, computed: Gradients) -> dict[str, Client]:
    """Return the clients of :data:`CLIENTS` for a program with these gradients."""
    step = replace(whole.clients["train"], fetches={"loss": computed.metrics["loss"]})
    gradients = tuple(dict.fromkeys(gradient.node for _, gradient in computed.gradients))
    return {
        "forward": replace(step, name="forward", targets=()),
        "gradients": replace(step, name="gradients", targets=gradients),
        "train": step,
    }
