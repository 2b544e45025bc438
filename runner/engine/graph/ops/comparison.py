"""Element-wise comparison and choice with NumPy broadcasting.

Ties of maximum and minimum give the whole gradient to the first operand: deterministic, and the two partial
gradients always add up to the gradient of the output.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.op import Attributes, Builder, NotDifferentiable, OpDef, expect, register
from runner.engine.graph.ops.common import (
    NUMERIC,
    broadcast_inputs,
    broadcast_shape,
    elementwise_gradient,
    expect_same_dtype,
)
from runner.engine.graph.tensor import Tensor, TensorSpec


def greater(graph: Builder, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a > b, bool."""
    return graph.add("greater", [a, b], name=name)[0]


def greater_equal(graph: Builder, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a >= b, bool."""
    return graph.add("greater_equal", [a, b], name=name)[0]


def less(graph: Builder, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a < b, bool."""
    return graph.add("less", [a, b], name=name)[0]


def equal(graph: Builder, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a == b, bool."""
    return graph.add("equal", [a, b], name=name)[0]


def select(graph: Builder, condition: Tensor, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a where the bool ``condition`` holds and b elsewhere; a and b have one dtype."""
    return graph.add("select", [condition, a, b], name=name)[0]


def maximum(graph: Builder, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add the greater of a and b; a tie gives its gradient to a. NaN in either operand is kept."""
    return graph.add("maximum", [a, b], name=name)[0]


def minimum(graph: Builder, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add the lesser of a and b; a tie gives its gradient to a. NaN in either operand is kept."""
    return graph.add("minimum", [a, b], name=name)[0]


def _infer_select(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    condition, a, b = specs
    expect(condition.dtype == "bool", "a condition of dtype bool", condition)
    expect_same_dtype([a, b])
    return [TensorSpec(broadcast_shape(specs), a.dtype)]


def _route(condition: Expr, dy: Expr) -> tuple[Expr, Expr]:
    """Split a gradient into its part where the condition holds and its part elsewhere."""
    zero = dy.scalar(0.0)
    return apply(select, condition, dy, zero), apply(select, condition, zero, dy)


_TRUTH = NotDifferentiable("its output is a truth value")
_SELECT = elementwise_gradient(lambda dy, y, condition, a, b: (None, *_route(condition, dy)))
_MAXIMUM = elementwise_gradient(lambda dy, y, a, b: _route(apply(greater_equal, a, b), dy))
_MINIMUM = elementwise_gradient(lambda dy, y, a, b: _route(apply(greater_equal, b, a), dy))

for _op in ("greater", "greater_equal", "less", "equal"):
    register(OpDef(_op, broadcast_inputs(result="bool"), _TRUTH, arity=2))
register(OpDef("select", _infer_select, _SELECT, arity=3))
register(OpDef("maximum", broadcast_inputs(NUMERIC), _MAXIMUM, arity=2))
register(OpDef("minimum", broadcast_inputs(NUMERIC), _MINIMUM, arity=2))
