"""One device of this machine and the program of forward passes for it, whatever strategy trained the network."""

from __future__ import annotations

from dataclasses import dataclass, replace

from runner.config.configuration import fix_machine_values
from runner.config.devices import Look, look_at
from runner.config.schema import Config
from runner.engine.compile.program import Client, Program
from runner.engine.graph.device import Cluster, local_cluster, worker_task
from runner.engine.graph.graph import Graph
from runner.kernels.gpu.discovery import discover
from runner.kernels.gpu.driver import GpuFacts
from runner.strategies.base import Strategy, Task
from runner.strategies.clients import program_of
from runner.strategies.replica import Replica
from runner.training.devices import gpus_of, say_devices
from runner.training.evaluation import with_validation

PREDICT = "predict"


@dataclass
class ForwardPasses(Strategy):
    """A strategy that trains nothing; it is in no table, so that no configuration can choose it."""

    name: str = "forward_passes"

    def build(self, task: Task) -> Program:
        """Return a program of one device whose variables are the weights alone.

        Besides the clients of every program there are "validate", and "predict", which fetches "logits" (N, C) for a
        batch of split "test", where N is the size of an evaluation batch.
        """
        graph = Graph()
        replica = Replica(graph, task, device=worker_task(0))
        outputs, batch = replica.evaluate((0, task.eval_batch_size))
        made = with_validation(program_of(graph, [replica], [], scored=[(outputs, batch)]))
        predict = Client(PREDICT, fetches={"logits": outputs.logits}, inputs=tuple(replica.eval_inputs), exact=True)
        return replace(made, clients={**made.clients, PREDICT: predict})


@dataclass(frozen=True)
class OneDevice:
    """A network and the device of this machine that it is asked on.

    config: of its run, with the machine values of this device in place of those that trained it. cluster: the device.
    gpus: of this machine. what, reason: the device and why it was taken, in words.
    """

    config: Config
    cluster: Cluster
    gpus: tuple[GpuFacts, ...]
    what: str
    reason: str


def one_device(config: Config, cores: int, look: Look = discover) -> OneDevice:
    """Take a GPU or the CPU, as ``config.cluster`` asks and as runs do, and say in the log which and why.

    cores: of this machine. look: finds its GPUs. Raises ResourceError for a GPU that is asked for and not there, or
    that lacks the precision.
    """
    here = fix_machine_values(replace(config, parallelism=ForwardPasses()), cores, look)
    found = look_at(here.cluster, look)
    cluster = local_cluster(1, gpus=gpus_of(here.cluster, workers=1, servers=0))
    told = say_devices(here.cluster, cluster, found)
    (what,) = told.devices.values()
    return OneDevice(here, cluster, found.gpus, what, told.reason)
