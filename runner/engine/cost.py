"""How long a node and a transfer should take: op formulas over device rates."""

from __future__ import annotations

from collections.abc import Callable

from runner.engine import op as op_table
from runner.engine.device import Device
from runner.engine.graph import Graph, Node
from runner.engine.op import Cost

DISPATCH_S = 2e-6

RESIDENT = frozenset({"placeholder", "variable"})
"""Ops that no device carries out: their values lie in its memory when a step begins."""

Seconds = Callable[[Graph, Node, Device], float]
"""How long a node of a graph takes on a device."""


def node_cost(graph: Graph, node: Node) -> Cost:
    """Floating-point operations and bytes moved by one node."""
    return op_table.lookup(node.op).cost(graph.input_specs(node), node.outputs, node.attributes)


def node_seconds(graph: Graph, node: Node, device: Device) -> float:
    """Estimated seconds of one node on a device: dispatch plus the slower of arithmetic and memory; 0 if resident."""
    if node.op in RESIDENT:
        return 0.0
    cost = node_cost(graph, node)
    return DISPATCH_S + max(cost.flops / device.flops_per_s, cost.nbytes / device.bytes_per_s)


def copy_seconds(nbytes: int, device: Device) -> float:
    """Estimated seconds a device is busy with handing out, or taking in, a tensor of so many bytes."""
    return DISPATCH_S + nbytes / device.bytes_per_s
