"""Element-wise comparison and choice with NumPy broadcasting.

Ties of maximum and minimum give the whole gradient to the first operand: deterministic, and the two partial
gradients always add up to the gradient of the output.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.engine.graph import Graph, Node
from runner.engine.op import Attributes, InferRule, NotDifferentiable, OpDef, expect, register
from runner.engine.ops.common import (
    NUMERIC,
    broadcast_shape,
    broadcasting,
    expect_dtype,
    expect_same_dtype,
    scalar,
)
from runner.engine.tensor import Tensor, TensorSpec


def greater(graph: Graph, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a > b, bool."""
    return graph.add("greater", [a, b], name=name)[0]


def greater_equal(graph: Graph, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a >= b, bool."""
    return graph.add("greater_equal", [a, b], name=name)[0]


def less(graph: Graph, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a < b, bool."""
    return graph.add("less", [a, b], name=name)[0]


def equal(graph: Graph, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a == b, bool."""
    return graph.add("equal", [a, b], name=name)[0]


def select(graph: Graph, condition: Tensor, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add a where the bool ``condition`` holds and b elsewhere; a and b have one dtype."""
    return graph.add("select", [condition, a, b], name=name)[0]


def maximum(graph: Graph, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add the greater of a and b; a tie gives its gradient to a. NaN in either operand is kept."""
    return graph.add("maximum", [a, b], name=name)[0]


def minimum(graph: Graph, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
    """Add the lesser of a and b; a tie gives its gradient to a. NaN in either operand is kept."""
    return graph.add("minimum", [a, b], name=name)[0]


def _compare(op: str) -> InferRule:
    def infer(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
        expect_same_dtype(op, specs)
        return [TensorSpec(broadcast_shape(op, specs), "bool")]

    return infer


def _infer_select(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    condition, a, b = specs
    expect(condition.dtype == "bool", "select", "a condition of dtype bool", condition)
    expect_same_dtype("select", [a, b])
    return [TensorSpec(broadcast_shape("select", specs), a.dtype)]


def _extremum(op: str) -> InferRule:
    def infer(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
        expect_same_dtype(op, specs)
        expect_dtype(op, specs[0], NUMERIC)
        return [TensorSpec(broadcast_shape(op, specs), specs[0].dtype)]

    return infer


def _route(graph: Graph, condition: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """Split a gradient into its part where the condition holds and its part elsewhere."""
    zero = scalar(graph, 0.0, dy)
    return select(graph, condition, dy, zero), select(graph, condition, zero, dy)


def _select_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [None, *_route(graph, node.inputs[0], dy)]


def _maximum_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return _route(graph, greater_equal(graph, *node.inputs), dy)


def _minimum_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    a, b = node.inputs
    return _route(graph, greater_equal(graph, b, a), dy)


_TRUTH = NotDifferentiable("its output is a truth value")

for _op in ("greater", "greater_equal", "less", "equal"):
    register(OpDef(_op, _compare(_op), _TRUTH, arity=2))
register(OpDef("select", _infer_select, broadcasting(_select_gradient), arity=3))
register(OpDef("maximum", _extremum("maximum"), broadcasting(_maximum_gradient), arity=2))
register(OpDef("minimum", _extremum("minimum"), broadcasting(_minimum_gradient), arity=2))
