"""What the rules of all op families share: shape conditions, adapters for gradient rules, and unbroadcasting.

Helpers that need nodes name the ops (``graph.add("fill", ...)``) instead of importing their builders, so that
the families import this module and never the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from runner.engine.graph import Graph, Node
from runner.engine.op import Attributes, GradientRule, NotDifferentiable, ShapeError, expect
from runner.engine.tensor import FLOATS, Tensor, TensorSpec, state_dtype

NUMERIC = (*FLOATS, "int32", "int64")
INTEGERS = ("int32", "int64")

NO_INPUTS = NotDifferentiable("it has no inputs")
MADE_BY_PASSES = NotDifferentiable("it is made by passes after gradients exist")


def expect_dtype(op: str, spec: TensorSpec, allowed: Sequence[str], role: str = "input") -> None:
    """Require that a tensor's dtype is one of ``allowed``."""
    expect(spec.dtype in allowed, op, f"{role} of dtype {' or '.join(allowed)}", spec)


def declared_spec(op: str, attributes: Attributes) -> TensorSpec:
    """Spec of an output that the attributes ``shape`` and ``dtype`` declare."""
    shape = attributes["shape"]
    expect(min(shape, default=0) >= 0, op, "a shape without negative extents", shape)
    return TensorSpec(shape, attributes["dtype"])


def expect_same_dtype(op: str, specs: Sequence[TensorSpec]) -> None:
    """Require one dtype of all tensors: nothing is promoted silently."""
    expect(len({spec.dtype for spec in specs}) == 1, op, "inputs of one dtype", ", ".join(str(s) for s in specs))


def expect_result_dtype(op: str, dtype: str, spec: TensorSpec) -> None:
    """Require that a sum over products of an input is given in the input's dtype, or in that of variables beside it."""
    allowed = dict.fromkeys((spec.dtype, state_dtype(spec.dtype)))
    expect(dtype in allowed, op, f"a result of dtype {' or '.join(allowed)} for {spec}", dtype)


def expect_rank(op: str, spec: TensorSpec, rank: int, role: str) -> None:
    """Require a number of dimensions."""
    expect(spec.rank == rank, op, f"{role} with {rank} dimensions", spec)


def expect_axes(op: str, axes: Sequence[int], rank: int) -> None:
    """Require strictly rising axes within 0..rank-1, the canonical form that builders produce."""
    canonical = list(axes) == sorted(set(axes)) and all(0 <= axis < rank for axis in axes)
    expect(canonical, op, f"rising axes within 0..{rank - 1}", tuple(axes))


def canonical_axis(axis: int, rank: int) -> int:
    """Count a negative axis from the end; out-of-range axes are left for the shape rule to refuse."""
    return axis + rank if axis < 0 else axis


def broadcast_shape(op: str, specs: Sequence[TensorSpec]) -> tuple[int, ...]:
    """Shape that NumPy's broadcasting gives these tensors together."""
    try:
        return np.broadcast_shapes(*(spec.shape for spec in specs))
    except ValueError:
        shapes = ", ".join(str(spec.shape) for spec in specs)
        raise ShapeError(f"op {op!r}: expected shapes that broadcast together, came {shapes}") from None


def float_like_input(op: str) -> Callable[[Sequence[TensorSpec], Attributes], Sequence[TensorSpec]]:
    """Shape rule: one float input, an output like it."""

    def infer(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
        expect_dtype(op, specs[0], FLOATS)
        return [specs[0]]

    return infer


def single_output(rule: Callable[[Graph, Node, Tensor], Sequence[Tensor | None]]) -> GradientRule:
    """Adapt the rule of an op with one output: it is only asked when that output's gradient exists."""

    def adapted(graph: Graph, node: Node, totals: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        (dy,) = totals
        assert dy is not None, "autodiff asks a rule only when a gradient has arrived"
        return rule(graph, node, dy)

    return adapted


def broadcasting(rule: Callable[[Graph, Node, Tensor], Sequence[Tensor | None]]) -> GradientRule:
    """Adapt the rule of a broadcasting op: its partials are summed back to the shape of each input."""

    def summed(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
        partials = rule(graph, node, dy)
        return [
            None if partial is None else unbroadcast(graph, partial, graph.spec(tensor).shape)
            for partial, tensor in zip(partials, node.inputs, strict=True)
        ]

    return single_output(summed)


def unbroadcast(graph: Graph, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Sum a tensor over the axes along which ``shape`` was broadcast: the adjoint of broadcasting.

    <broadcast(x), g> = <x, unbroadcast(g)> for every x of ``shape`` and every g of the tensor's shape.
    """
    wide = graph.spec(tensor).shape
    added = len(wide) - len(shape)
    axes = [axis for axis, extent in enumerate(wide) if axis < added or (shape[axis - added] == 1 and extent != 1)]
    if axes:
        tensor = graph.add("reduce_sum", [tensor], {"axes": axes, "keepdims": False})[0]
    if graph.spec(tensor).shape != tuple(shape):
        tensor = graph.add("reshape", [tensor], {"shape": tuple(shape)})[0]
    return tensor


def scalar(graph: Graph, value: float, like: Tensor) -> Tensor:
    """Add a scalar of the dtype of ``like``."""
    return graph.add("fill", (), {"value": float(value), "shape": (), "dtype": graph.spec(like).dtype})[0]


def zeros_like(graph: Graph, like: Tensor) -> Tensor:
    """Add zeros of the shape and dtype of ``like``."""
    spec = graph.spec(like)
    return graph.add("fill", (), {"value": 0.0, "shape": spec.shape, "dtype": spec.dtype})[0]


def input_flops(per_element: int) -> Callable[[Sequence[TensorSpec], Sequence[TensorSpec], Attributes], int]:
    """Cost rule: a number of operations for each element of the first input."""

    def flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
        return per_element * inputs[0].size

    return flops


def axes_size(shape: Sequence[int], axes: Sequence[int]) -> int:
    """Number of elements along the given axes."""
    return math.prod(shape[axis] for axis in axes)
