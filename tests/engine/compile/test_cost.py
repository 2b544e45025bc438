"""Estimated seconds of nodes, by which passes decide."""

from runner.engine.compile.cost import DISPATCH_S, node_cost, node_seconds
from runner.engine.graph import ops
from runner.engine.graph.device import Device
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import Cost
from runner.engine.graph.tensor import Node
from tests.engine.running import CPU_0


def product() -> tuple[Graph, Node]:
    """(3, 4) times (4, 5): 120 operations, 12 + 20 + 15 values."""
    graph = Graph()
    a = ops.placeholder(graph, (3, 4), "float64")
    b = ops.placeholder(graph, (4, 5), "float64")
    return graph, graph.nodes[ops.matmul(graph, a, b).node]


def test_cost_of_a_node_is_its_operations_and_moved_bytes() -> None:
    assert node_cost(*product()) == Cost(flops=2 * 3 * 4 * 5, nbytes=8 * (12 + 20 + 15))


def test_seconds_are_dispatch_plus_the_slower_of_arithmetic_and_memory() -> None:
    arithmetic_bound = Device(CPU_0, flops_per_s=10.0, bytes_per_s=1e9)
    memory_bound = Device(CPU_0, flops_per_s=1e9, bytes_per_s=47.0)
    assert node_seconds(*product(), arithmetic_bound) == DISPATCH_S + 12.0
    assert node_seconds(*product(), memory_bound) == DISPATCH_S + 8.0


def test_moving_data_costs_bytes_but_no_operations() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (6,), "float32")
    assert node_cost(graph, graph.nodes[ops.reshape(graph, x, (2, 3)).node]) == Cost(0, 48)
