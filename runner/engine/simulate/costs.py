"""Seconds of an instruction on described hardware, by the roofline model (Williams et al. 2009).

An instruction takes as long as its arithmetic or its memory traffic, whichever is longer, and a launch.
"""

from collections.abc import Callable

from runner.engine.compile.cost import RESIDENT, Seconds, node_cost
from runner.engine.compile.plan import DevicePlan, Instruction
from runner.engine.graph import op as op_table
from runner.engine.graph.device import Device
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node
from runner.engine.graph.op import Cost
from runner.engine.simulate.hardware import DeviceKind

TRANSFERS = frozenset({"send", "recv"})


def op_seconds(op: str, cost: Cost, kind: DeviceKind) -> float:
    """Return the seconds that a device of this kind spends on an op."""
    if op in TRANSFERS and not kind.copies:
        return 0.0
    reached = kind.convolutions if op.startswith("conv") else kind.products if op.startswith("matmul") else 1.0
    arithmetic = cost.flops / (kind.flops_per_s * reached)
    return 1e-6 * kind.launch_us + max(arithmetic, cost.nbytes / (kind.bytes_per_s * kind.traffic))


def instruction_seconds(plan: DevicePlan, instruction: Instruction, kind: DeviceKind) -> float:
    """Return the seconds that a device of this kind spends on an instruction of a plan."""
    inputs = [plan.slots[slot].spec for slot in instruction.inputs]
    outputs = [plan.slots[slot].spec for slot in instruction.outputs]
    if instruction.op in TRANSFERS:
        cost = Cost(0, sum(spec.nbytes for spec in (*inputs, *outputs)))
    else:
        cost = op_table.lookup(instruction.op).cost(inputs, outputs, instruction.attributes)
    return op_seconds(instruction.op, cost, kind)


def node_seconds_of(kind_of: Callable[[str], DeviceKind]) -> Seconds:
    """Return the function by which nodes are placed and ordered. kind_of: device name -> its kind."""

    def seconds(graph: Graph, node: Node, device: Device) -> float:
        return 0.0 if node.op in RESIDENT else op_seconds(node.op, node_cost(graph, node), kind_of(device.name))

    return seconds
