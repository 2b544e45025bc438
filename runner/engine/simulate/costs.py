"""Seconds of an instruction on described hardware, by the roofline model (Williams et al. 2009).

An instruction takes as long as its arithmetic or its memory traffic, whichever is longer, and a launch.
"""

from runner.engine.compile.plan import DevicePlan, Instruction
from runner.engine.graph import op as op_table
from runner.engine.graph.op import Cost
from runner.engine.simulate.hardware import DeviceKind

TRANSFERS = frozenset({"send", "recv"})

_CONVOLUTIONS, _PRODUCTS = "conv", "matmul"


def instruction_cost(plan: DevicePlan, instruction: Instruction) -> Cost:
    """Return the floating-point operations of an instruction, and the bytes that it reads and writes."""
    inputs = [plan.slots[slot].spec for slot in instruction.inputs]
    outputs = [plan.slots[slot].spec for slot in instruction.outputs]
    if instruction.op in TRANSFERS:
        return Cost(0, sum(spec.nbytes for spec in (*inputs, *outputs)))
    return op_table.lookup(instruction.op).cost(inputs, outputs, instruction.attributes)


def instruction_seconds(plan: DevicePlan, instruction: Instruction, kind: DeviceKind) -> float:
    """Return the seconds that a device of this kind spends on an instruction."""
    if instruction.op in TRANSFERS and not kind.copies:
        return 0.0
    cost = instruction_cost(plan, instruction)
    reached = 1.0
    if instruction.op.startswith(_CONVOLUTIONS):
        reached = kind.convolutions
    elif instruction.op.startswith(_PRODUCTS):
        reached = kind.products
    arithmetic = cost.flops / (kind.flops_per_s * reached)
    return 1e-6 * kind.launch_us + max(arithmetic, cost.nbytes / (kind.bytes_per_s * kind.traffic))
