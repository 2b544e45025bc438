"""A small program of two workers in which everything occurs that a plan can move, and its parts."""

from __future__ import annotations

from pathlib import Path

from runner.engine import ops
from runner.engine.device import Cards, local_cluster, worker_device
from runner.engine.graph import Graph
from runner.engine.inputs import InputSlot
from runner.engine.program import Client, Program
from runner.engine.program_plans import ProgramPlans
from runner.engine.remote_plan import RemotePlan
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


def plans_of(program: Program, registry: Registry, cards: Cards | None = None) -> ProgramPlans:
    """The plans of a program on as many devices as it has workers and servers."""
    return ProgramPlans(program, local_cluster(program.workers, program.servers, cards=cards), registry)


def remote_plan(planned: ProgramPlans, client: str, directory: Path, name: str = "plan") -> RemotePlan:
    """What the master makes of a client; the arenas lie in ``directory``."""
    asked = planned.client(client)
    compiled, plans = planned.compiled(asked.signature), planned.plans(asked.signature)
    return RemotePlan(name, asked, compiled, plans, planned.layouts, directory, EPOCH)
