"""A matrix product that is the input of a chain of element-wise operations and is not stored itself.

``matmul_elementwise``: the ``outputs`` of ``program``, which reads A B, A (m, k) and B (k, n) as for matmul, as its
input ``product``. Inputs A, B, and the program's other inputs in order, each (m, n) or (), of the dtype of the product.
dtype: of the product and of the outputs (m, n); float32 is possible for bfloat16 A and B.
"""

from collections.abc import Sequence
from dataclasses import replace

from runner.engine.graph.op import Attributes, Builder, OpDef, expect, register
from runner.engine.graph.ops.common import MADE_BY_PASSES, expect_result_dtype
from runner.engine.graph.ops.elementwise import program_flops, program_nodes, program_specs
from runner.engine.graph.ops.linear import TRANSPOSES, matmul, product_flops, product_spec
from runner.engine.graph.ops.structural import as_dtype
from runner.engine.graph.tensor import Tensor, TensorSpec


def _infer(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    return program_specs(_program_inputs(specs, attributes), attributes)


def _program_inputs(specs: Sequence[TensorSpec], attributes: Attributes) -> list[TensorSpec]:
    """Return the operands, with the product in its place."""
    expect(len(specs) >= 2, "at least 2 inputs", len(specs))
    a, b, *operands = specs
    result, dtype, place = product_spec((a, b), attributes), attributes["dtype"], attributes["product"]
    expect_result_dtype(dtype, result)
    inside = 0 <= place <= len(operands)
    expect(inside, f"the product among the program's {len(operands) + 1} inputs", f"product={place}")
    return [*operands[:place], replace(result, dtype=dtype), *operands[place:]]


def _decompose(graph: Builder, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    a, b = (as_dtype(graph, tensor, attributes["dtype"]) for tensor in inputs[:2])
    place, operands = attributes["product"], inputs[2:]
    result = matmul(graph, a, b, **{key: attributes[key] for key in TRANSPOSES})
    return program_nodes(graph, [*operands[:place], result, *operands[place:]], attributes)


def _flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    following = program_flops(_program_inputs(inputs, attributes), outputs, attributes)
    return product_flops(inputs, outputs, attributes) + following


register(
    OpDef(
        "matmul_elementwise",
        _infer,
        MADE_BY_PASSES,
        arity=None,
        attributes={**TRANSPOSES, "dtype": "dtype", "program": "str", "outputs": "ints", "product": "int"},
        flops=_flops,
        decompose=_decompose,
    )
)
