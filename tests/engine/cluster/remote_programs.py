"""A small program of two workers with all kinds of transfers: inputs, feeds, sends and fetches."""

from pathlib import Path

from runner.engine.cluster.remote_plan import RemotePlan
from runner.engine.compile.program import Client, InputSlot, Program
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph import ops
from runner.engine.graph.device import Gpus, local_cluster, worker_device
from runner.engine.graph.graph import Graph
from runner.kernels.registry import Registry

EPOCH = 1
EXAMPLES = 3


def there_and_back() -> Program:
    """Worker 0 reads examples and is fed a rate; worker 1 computes; worker 0 keeps and returns the result.

    ``run`` assigns ``w`` = -exp(rate * x) and fetches it with the value ``w`` had; ``init`` sets ``w`` to 0.
    """
    graph = Graph()
    with graph.device(worker_device(0)):
        x = ops.placeholder(graph, (EXAMPLES,), "float64", name="x")
        rate = ops.placeholder(graph, (), "float64", name="rate")
        w = ops.variable(graph, (EXAMPLES,), "float64", name="w")
        start = ops.assign(graph, w, ops.fill(graph, 0.0, (EXAMPLES,), "float64"), name="start")
        scaled = ops.mul(graph, x, rate, name="scaled")
    with graph.device(worker_device(1)):
        away = ops.exp(graph, scaled, name="away")
    with graph.device(worker_device(0)):
        back = ops.neg(graph, away, name="back")
        keep = ops.assign(graph, w, back, name="keep")
    clients = [
        Client("init", targets=(start.node,)),
        Client(
            "run",
            fetches={"old": w, "new": back, "away": away},
            targets=(keep.node,),
            inputs=(InputSlot(x, "train", "x", 0, EXAMPLES),),
            feeds={"rate": (rate,)},
        ),
    ]
    return Program(graph, {client.name: client for client in clients}, {}, workers=2)


def plans_of(program: Program, registry: Registry, gpus: Gpus | None = None) -> ProgramPlans:
    """The plans of a program on as many devices as it has workers and servers."""
    return ProgramPlans(program, local_cluster(program.workers, program.servers, gpus=gpus), registry)


def remote_plan(planned: ProgramPlans, client: str, directory: Path, name: str = "plan") -> RemotePlan:
    """The remote plan of a client, with arenas in ``directory``."""
    asked = planned.client(client)
    compiled, plans = planned.compiled(asked.signature), planned.plans(asked.signature)
    return RemotePlan(name, asked, compiled, plans, planned.layouts, directory, EPOCH)
