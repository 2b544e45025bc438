"""Matrix multiplication."""

from collections.abc import Sequence

from runner.engine.graph.node import Node
from runner.engine.graph.op import Attributes, Builder, OpDef, expect, register
from runner.engine.graph.ops.common import expect_floats, expect_rank, single_output
from runner.engine.graph.tensor import Tensor, TensorSpec

TRANSPOSES = {"transpose_a": "bool", "transpose_b": "bool"}
"""Attributes that say which factors are stored transposed."""


def matmul(
    graph: Builder,
    a: Tensor,
    b: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> Tensor:
    """Add the matrix product A B, where A (m, k) is a or its transpose and B (k, n) is b or its transpose."""
    attributes = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    return graph.add("matmul", [a, b], attributes, name=name)[0]


def product_spec(specs: Sequence[TensorSpec], attributes: Attributes) -> TensorSpec:
    """Return the spec of the product of two matrices, each of which may be transposed; they must fit."""
    a, b = specs
    expect_floats(specs)
    expect_rank(a, 2, "a")
    expect_rank(b, 2, "b")
    m, inner_a = reversed(a.shape) if attributes["transpose_a"] else a.shape
    inner_b, n = reversed(b.shape) if attributes["transpose_b"] else b.shape
    expect(inner_a == inner_b, "inner extents that agree", f"{a} and {b} with {dict(attributes)}")
    return TensorSpec((m, n), a.dtype)


def _infer(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    return [product_spec(specs, attributes)]


@single_output
def _gradient(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    a, b = node.inputs
    turned_a, turned_b = node.attributes["transpose_a"], node.attributes["transpose_b"]
    # With A = op(a), B = op(b): dA = dy B', dB = A' dy; a transposed operand takes the transposed product.
    if turned_a:
        da = matmul(graph, b, dy, transpose_a=turned_b, transpose_b=True)
    else:
        da = matmul(graph, dy, b, transpose_b=not turned_b)
    if turned_b:
        db = matmul(graph, dy, a, transpose_a=True, transpose_b=turned_a)
    else:
        db = matmul(graph, a, dy, transpose_a=not turned_a)
    return [da, db]


def product_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    """Cost of a matrix product: a multiplication and an addition per term."""
    inner = inputs[0].shape[0 if attributes["transpose_a"] else 1]
    return 2 * outputs[0].size * inner


register(OpDef("matmul", _infer, _gradient, arity=2, attributes=TRANSPOSES, flops=product_flops))
