"""Estimated durations of nodes: the costs of ops divided by the rates of devices."""

from collections.abc import Callable

from runner.engine.compile.passes.rewriting import ALIASES
from runner.engine.graph import Device, Graph, Node
from runner.engine.graph import op as op_table
from runner.engine.graph.op import Cost

DISPATCH_S = 2e-6

RESIDENT = frozenset({"placeholder", "variable"})
"""Ops without work: their values are in the memory of the device when a step begins."""

NOT_EXECUTED = RESIDENT | ALIASES
"""Ops that devices do not execute: values in memory, and other views of a value."""

Seconds = Callable[[Graph, Node, Device], float]
"""A function that returns the seconds that a node of a graph takes on a device."""


def node_cost(graph: Graph, node: Node) -> Cost:
    """Return the number of floating-point operations of one node and the number of bytes that it moves."""
    return op_table.lookup(node.op).cost(graph.input_specs(node), node.outputs, node.attributes)


def node_seconds(graph: Graph, node: Node, device: Device) -> float:
    """Estimate a node's seconds: dispatch plus the longer of arithmetic and memory time; 0 for ``NOT_EXECUTED``.

    An assign of the output of ``put_rows`` takes no time: ``put_rows`` writes directly to the variable's memory.
    """
    if node.op in NOT_EXECUTED or (node.op == "assign" and graph.nodes[node.inputs[1].node].op == "put_rows"):
        return 0.0
    cost = node_cost(graph, node)
    return DISPATCH_S + max(cost.flops / device.flops_per_s, cost.nbytes / device.bytes_per_s)
