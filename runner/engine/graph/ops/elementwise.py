"""Ops that run a program of element-wise operations in one pass; see :mod:`runner.kernels.elementwise` for the syntax.

* ``elementwise``: returns the values of ``program`` whose numbers are in ``outputs``. The inputs have one float dtype,
  and each has either shape () or the shape of the outputs.
* ``matmul_elementwise``: as ``elementwise``, but input number ``product`` of the program is the matrix product A B, of
  shape (m, n), which is not stored. Inputs: A, B, then the program's other inputs in order, of shape (m, n) or ().
  dtype: dtype of the program's inputs and outputs, either that of A and B or, for bfloat16 A and B, float32.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from runner.engine.graph.op import Attributes, Builder, OpDef, Specs, expect, register
from runner.engine.graph.ops.common import MADE_BY_PASSES, expect_floats, expect_result_dtype
from runner.engine.graph.ops.linear import TRANSPOSES, matmul, product_flops, product_spec
from runner.engine.graph.ops.structural import as_dtype
from runner.engine.graph.tensor import Tensor, TensorSpec
from runner.kernels.elementwise import Operand, parse


def _infer(*specs: TensorSpec, program: str, outputs: Sequence[int]) -> Specs:
    expect_floats(specs)
    shapes = {spec.shape for spec in specs} - {()}
    expect(len(shapes) <= 1, "inputs of one shape or of shape ()", [spec.shape for spec in specs])
    shape = shapes.pop() if shapes else ()
    parsed = parse(program, len(specs), outputs)
    wide = parsed.widened([spec.shape == shape for spec in specs])
    actual = f"outputs {parsed.outputs} of {parsed.text!r}"
    expect(all(wide[number] for number in parsed.outputs), f"outputs computed from inputs of shape {shape}", actual)
    return [TensorSpec(shape, specs[0].dtype)] * len(parsed.outputs)


def _infer_product(*specs: TensorSpec, program: str, outputs: Sequence[int], **attributes: Any) -> Specs:
    return _infer(*program_inputs(specs, attributes), program=program, outputs=outputs)


def _decompose(graph: Builder, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
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
    """Return the operands, with scalars broadcast to the shape of the others, for ops that do not broadcast."""
    shape = max((graph.spec(tensor).shape for tensor in operands), key=len)
    return [
        tensor if graph.spec(tensor).shape == shape else graph.add("broadcast_to", [tensor], {"shape": shape})[0]
        for tensor in operands
    ]


def _flops(inputs: Specs, outputs: Specs, attributes: Attributes) -> int:
    program = parse(attributes["program"], len(inputs), attributes["outputs"])
    return len(program.steps) * outputs[0].size


def program_inputs(specs: Sequence[TensorSpec], attributes: Attributes) -> list[TensorSpec]:
    """Return the specs of the program's inputs; the matrix product A B is at position ``product``."""
    expect(len(specs) >= 2, "at least 2 inputs", len(specs))
    a, b, *operands = specs
    result, dtype, place = product_spec(a, b, attributes), attributes["dtype"], attributes["product"]
    expect_result_dtype(dtype, result)
    inside = 0 <= place <= len(operands)
    expect(inside, f"the product among the program's {len(operands) + 1} inputs", f"product={place}")
    return [*operands[:place], replace(result, dtype=dtype), *operands[place:]]


def _decompose_product(graph: Builder, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    a, b = (as_dtype(graph, tensor, attributes["dtype"]) for tensor in inputs[:2])
    place, operands = attributes["product"], inputs[2:]
    result = matmul(graph, a, b, **{key: attributes[key] for key in TRANSPOSES})
    return _decompose(graph, [*operands[:place], result, *operands[place:]], attributes)


def _flops_of_product(inputs: Specs, outputs: Specs, attributes: Attributes) -> int:
    following = _flops(program_inputs(inputs, attributes), outputs, attributes)
    return product_flops(inputs, outputs, attributes) + following


_PROGRAM = {"program": "str", "outputs": "ints"}

register(
    OpDef("elementwise", _infer, MADE_BY_PASSES, None, _PROGRAM, _flops, decompose=_decompose),
    OpDef(
        "matmul_elementwise",
        _infer_product,
        MADE_BY_PASSES,
        arity=None,
        attributes={**TRANSPOSES, **_PROGRAM, "dtype": "dtype", "product": "int"},
        flops=_flops_of_product,
        decompose=_decompose_product,
    ),
)
