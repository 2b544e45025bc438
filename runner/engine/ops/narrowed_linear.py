"""A matrix product, with what follows it in a dense layer, whose weights are rounded where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from runner.engine.graph import Graph
from runner.engine.op import Attributes, OpDef, expect, lookup, register
from runner.engine.ops.common import MADE_BY_PASSES
from runner.engine.ops.fused_linear import Followed, add_followed, matmul_fused
from runner.engine.ops.linear import TRANSPOSES
from runner.engine.ops.structural import as_dtype
from runner.engine.tensor import Tensor, TensorSpec, state_dtype

OP = "matmul_narrowed"
FUSED = "matmul_fused"


def matmul_narrowed(
    graph: Graph, a: Tensor, b: Tensor, bias: Tensor | None = None, *, name: str | None = None, **how: Unpack[Followed]
) -> Tensor:
    """Add what ``matmul_fused`` gives for a, for b rounded to the dtype of a, and for bias.

    b: of the dtype that variables have beside a, which is float32 for bfloat16.
    """
    return add_followed(graph, OP, (a, b, bias), name, how, narrow=graph.spec(a).dtype)


def _infer(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    narrow = attributes["narrow"]
    expect(len(specs) >= 2, OP, "at least 2 inputs", len(specs))
    a, b, *bias = specs
    expect(a.dtype == narrow, OP, f"a of dtype {narrow}", a)
    expect(b.dtype == state_dtype(narrow), OP, f"b of dtype {state_dtype(narrow)}", b)
    return lookup(FUSED).infer([a, replace(b, dtype=narrow), *bias], attributes)


def _decompose(graph: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    a, b, *bias = inputs
    others = {key: attributes[key] for key in (*TRANSPOSES, "relu", "dtype")}
    return [matmul_fused(graph, a, as_dtype(graph, b, attributes["narrow"]), *bias, **others)]


def _flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    return lookup(FUSED).flops(inputs, outputs, attributes)


register(
    OpDef(
        OP,
        _infer,
        MADE_BY_PASSES,
        arity=None,
        attributes={**TRANSPOSES, "bias": "bool", "relu": "bool", "narrow": "dtype", "dtype": "dtype"},
        flops=_flops,
        decompose=_decompose,
    )
)
