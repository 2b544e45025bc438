"""Reductions over axes, and broadcasting, which is the adjoint of the sum.

Added by passes:

* ``sum_of_squares``: maps x to the sum of x * x over axes, as ``reduce_sum``.
"""

from collections.abc import Sequence

from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.node import Node
from runner.engine.graph.op import Builder, InferRule, NotDifferentiable, OpDef, Specs, expect, no_flops, register
from runner.engine.graph.ops.arithmetic import equal
from runner.engine.graph.ops.common import (
    MADE_BY_PASSES,
    NUMERIC,
    axes_size,
    canonical_axis,
    decomposition,
    expect_axes,
    expect_dtype,
    input_flops,
    single_output,
    unbroadcast,
)
from runner.engine.graph.ops.shape import reshape
from runner.engine.graph.ops.structural import cast
from runner.engine.graph.tensor import FLOATS, Tensor, TensorSpec


def reduce_sum(
    graph: Builder, x: Tensor, axes: Sequence[int] | None = None, *, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """Add a node for the sum of x over ``axes`` (None: all axes; negative axes count from the end).

    ``keepdims`` keeps reduced axes with extent 1. The order of additions depends only on the shape and the axes.
    """
    return _reduce(graph, "reduce_sum", x, axes, keepdims, name)


def reduce_mean(
    graph: Builder, x: Tensor, axes: Sequence[int] | None = None, *, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """Add a node for the mean of x (float) over ``axes``; see reduce_sum. Raises ShapeError for an empty axis."""
    return _reduce(graph, "reduce_mean", x, axes, keepdims, name)


def reduce_max(
    graph: Builder, x: Tensor, axes: Sequence[int] | None = None, *, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """Add a node for the maximum of x over ``axes``; see reduce_mean. Equal maxima share the gradient evenly."""
    return _reduce(graph, "reduce_max", x, axes, keepdims, name)


def argmax(graph: Builder, x: Tensor, axis: int, *, name: str | None = None) -> Tensor:
    """Add a node for the int64 position of the first maximum along ``axis``; the output lacks this axis."""
    attributes = {"axis": canonical_axis(axis, graph.spec(x).rank)}
    return graph.add("argmax", [x], attributes, name=name)[0]


def broadcast_to(graph: Builder, x: Tensor, shape: Sequence[int], *, name: str | None = None) -> Tensor:
    """Add a node that broadcasts x to ``shape`` by NumPy's rules."""
    return graph.add("broadcast_to", [x], {"shape": tuple(shape)}, name=name)[0]


def _reduce(graph: Builder, op: str, x: Tensor, axes: Sequence[int] | None, keepdims: bool, name: str | None) -> Tensor:
    rank = graph.spec(x).rank
    canonical = range(rank) if axes is None else sorted(canonical_axis(axis, rank) for axis in axes)
    return graph.add(op, [x], {"axes": tuple(canonical), "keepdims": keepdims}, name=name)[0]


def _reduced(dtypes: Sequence[str], empty_allowed: bool) -> InferRule:
    def infer(x: TensorSpec, *, axes: Sequence[int], keepdims: bool) -> Specs:
        expect_dtype(x, dtypes)
        expect_axes(axes, x.rank)
        expect(empty_allowed or axes_size(x.shape, axes) > 0, "axes with at least one element", x)
        kept = _keepdims_shape(x.shape, axes)
        shape = kept if keepdims else [d for a, d in enumerate(x.shape) if a not in axes]
        return [TensorSpec(tuple(shape), x.dtype)]

    return infer


def _keepdims_shape(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))


def _infer_argmax(x: TensorSpec, *, axis: int) -> Specs:
    expect_dtype(x, NUMERIC)
    expect_axes([axis], x.rank)
    expect(x.shape[axis] > 0, "an axis with at least one element", x)
    return [TensorSpec(x.shape[:axis] + x.shape[axis + 1 :], "int64")]


def _infer_broadcast_to(x: TensorSpec, *, shape: tuple[int, ...]) -> Specs:
    padded = (1,) * (len(shape) - x.rank) + x.shape
    fits = len(padded) == len(shape) and all(d in (1, s) for d, s in zip(padded, shape, strict=True))
    expect(fits, f"an input that broadcasts to {shape}", x)
    return [TensorSpec(shape, x.dtype)]


def _spread(node: Node, reduced: Expr, shape: Sequence[int]) -> Expr:
    """Broadcast ``reduced``, which has the shape of the node's output, to ``shape``, the shape of the node's input."""
    kept = _keepdims_shape(shape, node.attributes["axes"])
    if reduced.spec.shape != kept:
        reduced = apply(reshape, reduced, shape=kept)
    return apply(broadcast_to, reduced, shape=shape)


def _sum_gradient(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [_spread(node, Expr(graph, dy), graph.spec(node.inputs[0]).shape).tensor]


def _mean_gradient(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    shape = graph.spec(node.inputs[0]).shape
    count = axes_size(shape, node.attributes["axes"])
    return [_spread(node, Expr(graph, dy) * (1.0 / count), shape).tensor]


def _max_gradient(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    x, y = Expr(graph, node.inputs[0]), Expr(graph, node[0])
    shape, dtype = x.spec.shape, x.spec.dtype
    winners = apply(cast, apply(equal, x, _spread(node, y, shape)), dtype=dtype)
    ties = apply(reduce_sum, winners, **node.attributes)
    return [(winners * _spread(node, Expr(graph, dy) / ties, shape)).tensor]


@single_output
def _broadcast_gradient(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [unbroadcast(graph, dy, graph.spec(node.inputs[0]).shape)]


_POSITION = NotDifferentiable("its output is a position")
_AXES = {"axes": "ints", "keepdims": "bool"}

_ANY = _reduced(NUMERIC, empty_allowed=True)
_FLOATS, _NUMBERS = (_reduced(dtypes, empty_allowed=False) for dtypes in (FLOATS, NUMERIC))

register(
    OpDef("reduce_sum", _ANY, single_output(_sum_gradient), 1, _AXES, input_flops(1)),
    OpDef(
        "sum_of_squares",
        _reduced(FLOATS, empty_allowed=True),
        MADE_BY_PASSES,
        1,
        _AXES,
        input_flops(2),
        decompose=decomposition(lambda attributes, x: [apply(reduce_sum, x.square(), **attributes)]),
    ),
    OpDef("reduce_mean", _FLOATS, single_output(_mean_gradient), 1, _AXES, input_flops(1)),
    OpDef("reduce_max", _NUMBERS, single_output(_max_gradient), 1, _AXES, input_flops(1)),
    OpDef("argmax", _infer_argmax, _POSITION, 1, {"axis": "int"}, input_flops(1)),
    OpDef("broadcast_to", _infer_broadcast_to, _broadcast_gradient, 1, {"shape": "ints"}, no_flops),
)
