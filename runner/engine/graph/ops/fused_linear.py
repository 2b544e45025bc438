"""A matrix product with what follows it in a dense layer, and its weight gradient with that of the bias.

* ``matmul_fused``: y = A B + bias, followed by max(y, 0) if ``relu``; A (m, k) and B (k, n) as for matmul. bias: (n,),
  an input if ``bias``.
* ``matmul_bias_gradient``: (dw, db) of x (m, k) and dy (m, n): dw (k, n) = x' dy and db (n,), the sum of dy over rows.

dtype: of the results, float32 is possible for bfloat16 inputs.
"""

from collections.abc import Sequence
from dataclasses import replace

from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.op import Attributes, OpDef, expect, register
from runner.engine.graph.ops.activation import relu as add_relu
from runner.engine.graph.ops.common import MADE_BY_PASSES, decomposition, expect_result_dtype
from runner.engine.graph.ops.linear import TRANSPOSES, matmul, product_flops, product_spec
from runner.engine.graph.ops.reduction import reduce_sum
from runner.engine.graph.ops.structural import as_dtype
from runner.engine.graph.tensor import TensorSpec


def infer_fused(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    """Shape rule of matmul_fused."""
    wanted = 2 + attributes["bias"]
    expect(len(specs) == wanted, f"{wanted} inputs", len(specs))
    y = product_spec(specs[:2], attributes)
    if attributes["bias"]:
        bias = TensorSpec(y.shape[1:], y.dtype)
        expect(specs[2] == bias, f"one bias per column, {bias}", specs[2])
    expect_result_dtype(attributes["dtype"], y)
    return [replace(y, dtype=attributes["dtype"])]


_TRANSPOSED = {"transpose_a": True, "transpose_b": False}


def _infer_gradient(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    dtype = attributes["dtype"]
    dw = product_spec(specs, _TRANSPOSED)
    expect_result_dtype(dtype, dw)
    return [replace(dw, dtype=dtype), TensorSpec(dw.shape[1:], dtype)]


def decompose_fused(attributes: Attributes, *inputs: Expr) -> Sequence[Expr]:
    """Decomposition of matmul_fused."""
    a, b, *bias = (apply(as_dtype, each, dtype=attributes["dtype"]) for each in inputs)
    y = apply(matmul, a, b, **{key: attributes[key] for key in TRANSPOSES})
    if attributes["bias"]:
        y = y + bias[0]
    return [apply(add_relu, y) if attributes["relu"] else y]


@decomposition
def _decompose_gradient(attributes: Attributes, *inputs: Expr) -> Sequence[Expr]:
    x, dy = (apply(as_dtype, each, dtype=attributes["dtype"]) for each in inputs)
    return [apply(matmul, x, dy, transpose_a=True), apply(reduce_sum, dy, axes=(0,))]


def fused_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    """Cost of matmul_fused."""
    following: int = attributes["bias"] + attributes["relu"]
    return product_flops(inputs, outputs, attributes) + following * outputs[0].size


def _gradient_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    return product_flops(inputs, outputs, _TRANSPOSED) + inputs[1].size


register(
    OpDef(
        "matmul_fused",
        infer_fused,
        MADE_BY_PASSES,
        arity=None,
        attributes={**TRANSPOSES, "bias": "bool", "relu": "bool", "dtype": "dtype"},
        flops=fused_flops,
        decompose=decomposition(decompose_fused),
    )
)
register(
    OpDef(
        "matmul_bias_gradient",
        _infer_gradient,
        MADE_BY_PASSES,
        arity=2,
        attributes={"dtype": "dtype"},
        flops=_gradient_flops,
        decompose=_decompose_gradient,
    )
)
