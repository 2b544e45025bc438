"""Matrix multiplication, alone and combined with the bias and the ReLU of a dense layer.

* ``matmul_fused``: y = A B + bias, then max(y, 0) if ``relu``; A (m, k) and B (k, n) as in matmul. bias: (n,), an input
  only if the attribute ``bias`` is true.
* ``matmul_bias_gradient``: maps x (m, k) and dy (m, n) to dw = x^T dy (k, n) and db (n,), the sum of dy over rows.

dtype: dtype of the results of both ops, either the dtype of the inputs or, for bfloat16 inputs, float32.
"""

from collections.abc import Sequence
from dataclasses import replace

from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.node import Node
from runner.engine.graph.op import Attributes, Builder, OpDef, Specs, expect, register
from runner.engine.graph.ops.activation import relu as add_relu
from runner.engine.graph.ops.common import (
    MADE_BY_PASSES,
    decomposition,
    expect_floats,
    expect_rank,
    expect_result_dtype,
    single_output,
)
from runner.engine.graph.ops.reduction import reduce_sum
from runner.engine.graph.ops.structural import as_dtype
from runner.engine.graph.tensor import Tensor, TensorSpec

TRANSPOSES = {"transpose_a": "bool", "transpose_b": "bool"}
"""Attributes that state whether the factors A and B are stored transposed."""


def matmul(
    graph: Builder,
    a: Tensor,
    b: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> Tensor:
    """Add a node for the product A B, where A (m, k) is a or its transpose and B (k, n) is b or its transpose."""
    attributes = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    return graph.add("matmul", [a, b], attributes, name=name)[0]


def product_spec(a: TensorSpec, b: TensorSpec, attributes: Attributes) -> TensorSpec:
    """Return the spec of the product of two matrices, each possibly transposed; raises ShapeError on a mismatch."""
    expect_floats([a, b])
    expect_rank(a, 2, "a")
    expect_rank(b, 2, "b")
    m, inner_a = reversed(a.shape) if attributes["transpose_a"] else a.shape
    inner_b, n = reversed(b.shape) if attributes["transpose_b"] else b.shape
    expect(inner_a == inner_b, "inner extents that agree", f"{a} and {b} with {dict(attributes)}")
    return TensorSpec((m, n), a.dtype)


@single_output
def _gradient(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    a, b = node.inputs
    turned_a, turned_b = node.attributes["transpose_a"], node.attributes["transpose_b"]
    # For y = A B, dA = dy B' and dB = A' dy, where ' means transposed. If A = a', then da = dA'. If B = b', db = dB'.
    if turned_a:
        da = matmul(graph, b, dy, transpose_a=turned_b, transpose_b=True)
    else:
        da = matmul(graph, dy, b, transpose_b=not turned_b)
    if turned_b:
        db = matmul(graph, dy, a, transpose_a=True, transpose_b=turned_a)
    else:
        db = matmul(graph, a, dy, transpose_a=not turned_a)
    return [da, db]


def product_flops(inputs: Specs, outputs: Specs, attributes: Attributes) -> int:
    """Return the number of floating-point operations of a matrix product: a multiplication and an addition per term."""
    inner = inputs[0].shape[0 if attributes["transpose_a"] else 1]
    return 2 * outputs[0].size * inner


def _infer_fused(*specs: TensorSpec, bias: bool, relu: bool, dtype: str, **transposes: bool) -> Specs:
    wanted = 2 + bias
    expect(len(specs) == wanted, f"{wanted} inputs", len(specs))
    y = product_spec(specs[0], specs[1], transposes)
    if bias:
        vector = TensorSpec(y.shape[1:], y.dtype)
        expect(specs[2] == vector, f"one bias per column, {vector}", specs[2])
    expect_result_dtype(dtype, y)
    return [replace(y, dtype=dtype)]


_TRANSPOSED = {"transpose_a": True, "transpose_b": False}


def _infer_bias_gradient(x: TensorSpec, dy: TensorSpec, *, dtype: str) -> Specs:
    dw = product_spec(x, dy, _TRANSPOSED)
    expect_result_dtype(dtype, dw)
    return [replace(dw, dtype=dtype), TensorSpec(dw.shape[1:], dtype)]


@decomposition
def _decompose_fused(attributes: Attributes, *inputs: Expr) -> Sequence[Expr]:
    a, b, *bias = (apply(as_dtype, each, dtype=attributes["dtype"]) for each in inputs)
    y = apply(matmul, a, b, **{key: attributes[key] for key in TRANSPOSES})
    if attributes["bias"]:
        y = y + bias[0]
    return [apply(add_relu, y) if attributes["relu"] else y]


@decomposition
def _decompose_bias_gradient(attributes: Attributes, *inputs: Expr) -> Sequence[Expr]:
    x, dy = (apply(as_dtype, each, dtype=attributes["dtype"]) for each in inputs)
    return [apply(matmul, x, dy, transpose_a=True), apply(reduce_sum, dy, axes=(0,))]


def _fused_flops(inputs: Specs, outputs: Specs, attributes: Attributes) -> int:
    following: int = attributes["bias"] + attributes["relu"]
    return product_flops(inputs, outputs, attributes) + following * outputs[0].size


_FUSED = {**TRANSPOSES, "bias": "bool", "relu": "bool", "dtype": "dtype"}

register(
    OpDef(
        "matmul", lambda a, b, **transposes: [product_spec(a, b, transposes)], _gradient, 2, TRANSPOSES, product_flops
    ),
    OpDef("matmul_fused", _infer_fused, MADE_BY_PASSES, None, _FUSED, _fused_flops, decompose=_decompose_fused),
    OpDef(
        "matmul_bias_gradient",
        _infer_bias_gradient,
        MADE_BY_PASSES,
        arity=2,
        attributes={"dtype": "dtype"},
        flops=lambda inputs, outputs, attributes: product_flops(inputs, outputs, _TRANSPOSED) + inputs[1].size,
        decompose=_decompose_bias_gradient,
    ),
)
