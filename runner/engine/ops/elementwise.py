"""A chain of element-wise operations in one pass over memory, written in a small language of its own."""

from __future__ import annotations

from collections.abc import Sequence

from runner.engine.graph import Graph
from runner.engine.op import Attributes, OpDef, expect, register
from runner.engine.ops.common import MADE_BY_PASSES, expect_dtype, expect_same_dtype
from runner.engine.tensor import FLOATS, Tensor, TensorSpec
from runner.kernels.elementwise import Operand, Program, parse


def elementwise(
    graph: Graph, inputs: Sequence[Tensor], program: Program, *, name: str | None = None
) -> tuple[Tensor, ...]:
    """Add the outputs of a program over ``inputs``, each of one shape or of shape (), all of one float dtype."""
    attributes = {"program": program.text, "outputs": program.outputs}
    return graph.add("elementwise", inputs, attributes, name=name).tensors


def _infer(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    return program_specs("elementwise", specs, attributes)


def program_specs(op: str, specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    """Specs of what a program (attributes ``program`` and ``outputs``) makes of inputs, after checking that it can."""
    expect_same_dtype(op, specs)
    expect_dtype(op, specs[0], FLOATS)
    shapes = {spec.shape for spec in specs} - {()}
    expect(len(shapes) <= 1, op, "inputs of one shape or of shape ()", [spec.shape for spec in specs])
    shape = shapes.pop() if shapes else ()
    program = parse(attributes["program"], len(specs), attributes["outputs"])
    wide = program.widened([spec.shape == shape for spec in specs])
    expect(
        all(wide[number] for number in program.outputs),
        op,
        f"outputs computed from inputs of shape {shape}",
        f"outputs {program.outputs} of {program.text!r}",
    )
    return [TensorSpec(shape, specs[0].dtype)] * len(program.outputs)


def program_nodes(graph: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    """Add the steps of a program as nodes of their own; returns its outputs."""
    program = parse(attributes["program"], len(inputs), attributes["outputs"])
    values = list(inputs)
    for step in program.steps:
        operands = [_operand(graph, values, operand) for operand in step.operands]
        if step.function == "relu_gradient":
            operands = _of_one_shape(graph, operands)
        values.append(graph.add(step.function, operands)[0])
    return [values[number] for number in program.outputs]


def _operand(graph: Graph, values: Sequence[Tensor], operand: Operand) -> Tensor:
    if isinstance(operand, int):
        return values[operand]
    return graph.add("fill", (), {"value": operand, "shape": (), "dtype": graph.spec(values[0]).dtype})[0]


def _of_one_shape(graph: Graph, operands: Sequence[Tensor]) -> list[Tensor]:
    """Broadcast a scalar among the operands of an op that does not broadcast by itself."""
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
        _infer,
        MADE_BY_PASSES,
        arity=None,
        attributes={"program": "str", "outputs": "ints"},
        flops=program_flops,
        decompose=program_nodes,
    )
)
