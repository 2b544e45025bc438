"""The arithmetic of a phase, counted in the graph before any compiler pass."""

from runner.engine.compile.cost import node_cost
from runner.engine.compile.program import Client
from runner.engine.graph.graph import Graph

MULTIPLYING = frozenset({"conv2d", "conv2d_input_gradient", "conv2d_weight_gradient", "matmul"})
"""The counted ops. The work of all other ops is small in comparison."""


def multiply_adds(graph: Graph, client: Client) -> int:
    """Return the multiply-adds of all nodes that a client runs. No client computes the gradient of the images."""
    needed = {tensor.node for tensor in client.fetches.values()} | set(client.targets)
    total = 0
    for node in reversed(list(graph)):
        if node.name in needed:
            needed.update(tensor.node for tensor in node.inputs)
            needed.update(node.control_inputs)
            if node.op in MULTIPLYING:
                total += node_cost(graph, node).flops // 2
    return total
