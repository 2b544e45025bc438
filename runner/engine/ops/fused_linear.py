"""A matrix product with what follows it in a dense layer, and its weight gradient with that of the bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

from runner.engine.graph import Graph
from runner.engine.op import Attributes, OpDef, expect, register
from runner.engine.ops.activation import relu as add_relu
from runner.engine.ops.arithmetic import add
from runner.engine.ops.common import MADE_BY_PASSES, expect_result_dtype
from runner.engine.ops.linear import TRANSPOSES, matmul, product_flops, product_spec
from runner.engine.ops.reduction import reduce_sum
from runner.engine.ops.structural import as_dtype
from runner.engine.tensor import Tensor, TensorSpec


class Followed(TypedDict, total=False):
    """How a product is made and what follows it; each is False by default, and dtype, of y, that of a.

    A float32 y is possible for bfloat16 inputs. relu: y is then max(y, 0).
    """

    transpose_a: bool
    transpose_b: bool
    relu: bool
    dtype: str


def matmul_fused(
    graph: Graph, a: Tensor, b: Tensor, bias: Tensor | None = None, *, name: str | None = None, **how: Unpack[Followed]
) -> Tensor:
    """Add y = A B + bias, and what follows; A (m, k) and B (k, n) as for matmul, bias (n,)."""
    return add_followed(graph, "matmul_fused", (a, b, bias), name, how)


def add_followed(
    graph: Graph,
    op: str,
    operands: tuple[Tensor, Tensor, Tensor | None],
    name: str | None,
    how: Followed,
    **more: Any,
) -> Tensor:
    """Add a product of a and b, with a bias where there is one. more: attributes that the op alone has."""
    a, b, bias = operands
    attributes = {
        **dict.fromkeys((*TRANSPOSES, "relu"), False),
        "dtype": graph.spec(a).dtype,
        **how,
        "bias": bias is not None,
        **more,
    }
    return graph.add(op, [a, b] if bias is None else [a, b, bias], attributes, name=name)[0]


def matmul_bias_gradient(
    graph: Graph, x: Tensor, dy: Tensor, *, dtype: str | None = None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Add (dw, db) for x (m, k) and dy (m, n): dw (k, n) = x' dy and db (n,), the sum of dy over rows.

    dtype: of dw and db, that of x by default; float32 is possible for bfloat16 inputs.
    """
    node = graph.add("matmul_bias_gradient", [x, dy], {"dtype": dtype or graph.spec(x).dtype}, name=name)
    return node[0], node[1]


def _infer_fused(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    op = "matmul_fused"
    wanted = 2 + attributes["bias"]
    expect(len(specs) == wanted, op, f"{wanted} inputs", len(specs))
    y = product_spec(op, specs[:2], attributes)
    if attributes["bias"]:
        bias = TensorSpec(y.shape[1:], y.dtype)
        expect(specs[2] == bias, op, f"one bias per column, {bias}", specs[2])
    expect_result_dtype(op, attributes["dtype"], y)
    return [replace(y, dtype=attributes["dtype"])]


_TRANSPOSED = {"transpose_a": True, "transpose_b": False}


def _infer_gradient(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    op, dtype = "matmul_bias_gradient", attributes["dtype"]
    dw = product_spec(op, specs, _TRANSPOSED)
    expect_result_dtype(op, dtype, dw)
    return [replace(dw, dtype=dtype), TensorSpec(dw.shape[1:], dtype)]


def _decompose_fused(graph: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    a, b, *bias = (as_dtype(graph, tensor, attributes["dtype"]) for tensor in inputs)
    y = matmul(graph, a, b, **{key: attributes[key] for key in TRANSPOSES})
    if attributes["bias"]:
        y = add(graph, y, bias[0])
    return [add_relu(graph, y) if attributes["relu"] else y]


def _decompose_gradient(graph: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    x, dy = (as_dtype(graph, tensor, attributes["dtype"]) for tensor in inputs)
    return [matmul(graph, x, dy, transpose_a=True), reduce_sum(graph, dy, (0,))]


def _fused_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    following: int = attributes["bias"] + attributes["relu"]
    return product_flops(inputs, outputs, attributes) + following * outputs[0].size


def _gradient_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    return product_flops(inputs, outputs, _TRANSPOSED) + inputs[1].size


register(
    OpDef(
        "matmul_fused",
        _infer_fused,
        MADE_BY_PASSES,
        arity=None,
        attributes={**TRANSPOSES, "bias": "bool", "relu": "bool", "dtype": "dtype"},
        flops=_fused_flops,
        decompose=_decompose_fused,
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
