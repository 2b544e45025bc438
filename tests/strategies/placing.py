"""Placement of strategies that leave devices open, in this process."""

from dataclasses import dataclass

from runner.engine.compile.passes.layer_groups import devices_of_layers
from runner.engine.compile.program import Program
from runner.engine.compile.program_placement import place_program
from runner.engine.graph.device import Cluster, local_cluster
from runner.engine.run.kernel_table import load_kernels
from runner.kernels.registry import Registry
from runner.strategies.base import Task
from runner.strategies.model import ModelParallel


def near(workers: int) -> Cluster:
    """Devices with nearly free links, so that layers are distributed."""
    return local_cluster(workers, latency_s=1e-9, bytes_per_s=1e15)


@dataclass
class Placed:
    """A model-parallel strategy whose program is placed on a cluster; None for :func:`near`.

    registry: the kernels there are; those of the host if None.
    """

    strategy: ModelParallel
    cluster: Cluster | None = None
    name: str = "model"
    registry: Registry | None = None

    @property
    def workers(self) -> int:
        """Of the strategy."""
        return self.strategy.workers

    def build(self, task: Task) -> Program:
        """Return the placed program."""
        cluster = self.cluster or near(self.workers)
        return place_program(self.strategy.build(task), cluster, self.registry or load_kernels()).program


def layers_of(program: Program) -> dict[str, str]:
    """Layer -> number of its worker."""
    return {layer: device.split("/")[2].split(":")[1] for layer, device in devices_of_layers(program.graph).items()}
