"""A chain of element-wise operations in one pass over memory, written in a small language.

``elementwise``: the ``outputs`` of ``program`` over its inputs, each of one shape or of shape (), all of one float
dtype.
"""

from collections.abc import Sequence

from runner.engine.graph.op import Attributes, Builder, OpDef, expect, register
from runner.engine.graph.ops.common import MADE_BY_PASSES, expect_floats
from runner.engine.graph.tensor import Tensor, TensorSpec
from runner.kernels.elementwise import Operand, parse


def program_specs(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    """Shape rule: the outputs of a program (attributes ``program`` and ``outputs``) over inputs that fit it."""
    expect_floats(specs)
    shapes = {spec.shape for spec in specs} - {()}
    expect(len(shapes) <= 1, "inputs of one shape or of shape ()", [spec.shape for spec in specs])
    shape = shapes.pop() if shapes else ()
    program = parse(attributes["program"], len(specs), attributes["outputs"])
    wide = program.widened([spec.shape == shape for spec in specs])
    came = f"outputs {program.outputs} of {program.text!r}"
    expect(all(wide[number] for number in program.outputs), f"outputs computed from inputs of shape {shape}", came)
    return [TensorSpec(shape, specs[0].dtype)] * len(program.outputs)


def program_nodes(graph: Builder, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    """Decomposition: add a node for each step of a program; returns its outputs."""
    program = parse(attributes["program"], len(inputs), attributes["outputs"])
    values = list(inputs)
    for step in program.steps:
        operands = [_operand(graph, values, operand) for operand in step.operands]
        if step.function == "relu_gradient":
            operands = _of_one_shape(graph, operands)
        values.append(graph.add(step.function, operands)[0])
    return [values[number] for number in program.outputs]


def _operand(graph: Builder, values: Sequence[Tensor], operand: Operand) -> Tensor:
    if isinstance(operand, int):
        return values[operand]
    return graph.add("fill", (), {"value": operand, "shape": (), "dtype": graph.spec(values[0]).dtype})[0]


def _of_one_shape(graph: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
    """Broadcast a scalar among the operands of an op that does not broadcast."""
    shape = max((graph.spec(tensor).shape for tensor in operands), key=len)
    return [
        tensor if graph.spec(tensor).shape == shape else graph.add("broadcast_to", [tensor], {"shape": shape})[0]
        for tensor in operands
    ]


def program_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    """Cost of a program: an operation per step and element."""
    program = parse(attributes["program"], len(inputs), attributes["outputs"])
    return len(program.steps) * outputs[0].size


register(
    OpDef(
        "elementwise",
        program_specs,
        MADE_BY_PASSES,
        arity=None,
        attributes={"program": "str", "outputs": "ints"},
        flops=program_flops,
        decompose=program_nodes,
    )
)
