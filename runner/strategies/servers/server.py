"""Parameter servers that apply one update per batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.engine.graph import ops
from runner.engine.graph.device import server_task
from runner.engine.graph.expression import Expr
from runner.engine.graph.graph import Graph
from runner.engine.graph.network import StateUpdate
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.variables import Variable, Variables
from runner.optimizers.base import assign_by
from runner.strategies.base import Task
from runner.strategies.replica import advance


class Server:
    """One parameter server: its device, and its placeholders for the step number and the learning rate."""

    def __init__(self, graph: Graph, task: Task, index: int) -> None:
        self.device = server_task(index)
        self.scope = f"server_{index}"
        with graph.absolute_scope(self.scope), graph.device(self.device):
            self.step = ops.placeholder(graph, (), "int64", name="step")
            self.learning_rate = ops.placeholder(graph, (), task.state_dtype, name="learning_rate")


def update_served(
    graph: Graph, task: Task, served: Variables, servers: Sequence[Server], gradients: Sequence[tuple[Variable, Tensor]]
) -> list[str]:
    """Add the optimizer's update of every variable on its server; returns the assign nodes to run."""
    rules = {}
    for server in servers:
        with graph.absolute_scope(f"{server.scope}/update"), graph.device(server.device):
            rules[server.device] = task.optimizer.rule(Expr(graph, server.learning_rate), Expr(graph, server.step))
    targets: list[str] = []
    for variable, gradient in gradients:
        device = served.device_of(variable)
        with graph.absolute_scope("update"), graph.device(device):
            targets += assign_by(rules[device], served, variable, gradient)
    return targets


def advance_served(graph: Graph, served: Variables, updates: Sequence[StateUpdate]) -> list[str]:
    """Add the next value of every moving average on its server; returns the assign nodes to run."""
    targets = []
    for update in updates:
        # The updates name the workers' views of the averages.
        average = served[update.variable.name]
        with graph.absolute_scope("update"), graph.device(served.device_of(average)):
            targets.append(advance(graph, replace(update, variable=average)))
    return targets
