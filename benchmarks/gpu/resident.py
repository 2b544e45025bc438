"""The strategy ``single`` with a batch that stays on the device, so that a step transfers only the loss to the host."""

from dataclasses import replace

from benchmarks.timed_single import timed_program
from runner.engine.compile.program import Client, Program
from runner.engine.graph import Graph, Tensor, ops, worker_task
from runner.strategies import Workload
from runner.strategies.replica import Replica, Share, placeholders

LOAD = "load"
"""The client that loads the batch once. The names of its feeds are the fields of the batch."""


class ResidentReplica(Replica):
    """A replica whose training batch is stored in variables on its device.

    fed: field of the batch -> placeholder. assigns: nodes that store the fed values.
    """

    def __init__(self, graph: Graph, workload: Workload, *, device: str) -> None:
        super().__init__(graph, workload, device=device)
        self.fed: dict[str, Tensor] = {}
        self.assigns: list[str] = []

    def inputs(self, split: str, share: Share) -> dict[str, Tensor]:
        """Add variables for the training batch, and the nodes that load the batch."""
        if split != "train":
            return super().inputs(split, share)
        kept = {}
        for name, source in placeholders(self.graph, self.workload, share[1] - share[0]).items():
            spec = self.graph.spec(source)
            kept[name] = ops.variable(self.graph, spec.shape, spec.dtype, name=f"resident/{name}")
            self.fed[name] = source
            self.assigns.append(ops.assign(self.graph, kept[name], source).node)
        return {**kept, "x": ops.as_dtype(self.graph, kept["x"], self.workload.dtype)}


def resident_single(workload: Workload) -> Program:
    """Return a program for one device with the timed clients and :data:`LOAD`. ``workload.microbatches`` must be 1."""
    replica = ResidentReplica(Graph(), workload, device=worker_task(0))
    whole = timed_program(replica)
    feeds = {name: (tensor,) for name, tensor in replica.fed.items()}
    load = Client(LOAD, targets=tuple(replica.assigns), feeds=feeds)
    return replace(whole, clients={**whole.clients, LOAD: load})
