"""How much arithmetic a phase is: counted in the graph as it is before any pass."""

from __future__ import annotations

from runner.engine.compile.cost import node_cost
from runner.engine.compile.program import Client
from runner.engine.graph.graph import Graph

MULTIPLYING = frozenset({"conv2d", "conv2d_input_gradient", "conv2d_weight_gradient", "matmul"})
"""The ops that are counted. The others' work is small beside theirs."""


def multiply_adds(graph: Graph, client: Client) -> int:
    """Multiply-adds of everything a client needs. The gradient with respect to the images is not there."""
    needed = {tensor.node for tensor in client.fetches.values()} | set(client.targets)
    total = 0
    for node in reversed(list(graph)):
        if node.name in needed:
            needed.update(tensor.node for tensor in node.inputs)
            needed.update(node.control_inputs)
            if node.op in MULTIPLYING:
                total += node_cost(graph, node).flops // 2
    return total
