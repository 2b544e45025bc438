"""A matrix product, with what follows it in a dense layer, that casts its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.op import Attributes, Builder, OpDef, expect, register
from runner.engine.graph.ops.common import MADE_BY_PASSES, decomposition
from runner.engine.graph.ops.fused_linear import Followed, add_followed, decompose_fused, fused_flops, infer_fused
from runner.engine.graph.ops.linear import TRANSPOSES
from runner.engine.graph.ops.structural import as_dtype
from runner.engine.graph.tensor import Tensor, TensorSpec, state_dtype

OP = "matmul_cast"


def matmul_cast(
    graph: Builder,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    name: str | None = None,
    **options: Unpack[Followed],
) -> Tensor:
    """Add ``matmul_fused`` of a, of b cast to the dtype of a, and of bias.

    b: of the dtype that variables have next to a, which is float32 for bfloat16.
    """
    return add_followed(graph, OP, (a, b, bias), name, options, cast_to=graph.spec(a).dtype)


def _infer(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    cast_to = attributes["cast_to"]
    expect(len(specs) >= 2, "at least 2 inputs", len(specs))
    a, b, *bias = specs
    expect(a.dtype == cast_to, f"a of dtype {cast_to}", a)
    expect(b.dtype == state_dtype(cast_to), f"b of dtype {state_dtype(cast_to)}", b)
    return infer_fused([a, replace(b, dtype=cast_to), *bias], attributes)


@decomposition
def _decompose(attributes: Attributes, a: Expr, b: Expr, *bias: Expr) -> Sequence[Expr]:
    return decompose_fused(attributes, a, apply(as_dtype, b, dtype=attributes["cast_to"]), *bias)


register(
    OpDef(
        OP,
        _infer,
        MADE_BY_PASSES,
        arity=None,
        attributes={**TRANSPOSES, "bias": "bool", "relu": "bool", "cast_to": "dtype", "dtype": "dtype"},
        flops=fused_flops,
        decompose=_decompose,
    )
)
