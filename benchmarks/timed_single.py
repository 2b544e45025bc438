"""The strategy ``single`` with separate clients for the timed phases of a training step."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.protocol import PHASES
from runner.engine.compile.program import Program
from runner.engine.graph import Graph, worker_task
from runner.engine.graph.rows import tensor_of
from runner.strategies import Workload
from runner.strategies.clients import program
from runner.strategies.replica import Replica
from runner.strategies.single import Single

CLIENTS: Mapping[str, str] = dict(zip(PHASES, ("forward", "gradients", "train"), strict=True))
"""Phase -> its client. All three clients fetch only the loss."""


@dataclass
class TimedSingle(Single):
    """The strategy ``single`` with the three clients of :data:`CLIENTS` over the same nodes."""

    def build(self, workload: Workload) -> Program:
        """Return the program. ``workload.microbatches`` must be 1."""
        return timed_program(Replica(Graph(), workload, device=worker_task(0)))


def timed_program(replica: Replica) -> Program:
    """Return the program of one replica with the clients of :data:`CLIENTS`."""
    computed = replica.compute_gradients((0, replica.workload.batch_size), "train")
    targets = replica.apply(computed.gradients, computed.state_updates)
    whole = program(replica.graph, [replica], metrics=computed.metrics, targets=targets)
    step = replace(whole.clients["train"], fetches={"loss": computed.metrics["loss"]})
    gradients = tuple(dict.fromkeys(tensor_of(gradient).node for _, gradient in computed.gradients))
    timed = {
        "forward": replace(step, name="forward", targets=()),
        "gradients": replace(step, name="gradients", targets=gradients),
        "train": step,
    }
    return replace(whole, clients={**whole.clients, **timed})
