"""Functions for the modules that define ops: checks of shapes, gradient rules made from formulas, and unbroadcasting.

The modules that define ops import this module, so it adds nodes by op name: ``graph.add("reshape", ...)``.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from runner.engine.graph.expression import Expr
from runner.engine.graph.node import Node
from runner.engine.graph.op import (
    Attributes,
    Builder,
    Decomposition,
    FlopsRule,
    GradientRule,
    InferRule,
    NotDifferentiable,
    OpDef,
    ShapeError,
    Specs,
    expect,
    output_flops,
    register,
)
from runner.engine.graph.tensor import FLOATS, Tensor, TensorSpec, state_dtype

NUMERIC = (*FLOATS, "int32", "int64")
INTEGERS = ("int32", "int64")

Formula = Callable[..., Expr | Sequence[Expr | None] | None]
"""A gradient formula: see :func:`elementwise_gradient`."""

NO_INPUTS = NotDifferentiable("it has no inputs")
MADE_BY_PASSES = NotDifferentiable("passes add this op after differentiation")


def expect_dtype(spec: TensorSpec, allowed: Sequence[str], role: str = "input") -> None:
    """Require that a tensor's dtype is one of ``allowed``."""
    expect(spec.dtype in allowed, f"{role} of dtype {' or '.join(allowed)}", spec)


def expect_same_dtype(specs: Sequence[TensorSpec]) -> None:
    """Require that all tensors have one dtype: dtypes are never promoted silently."""
    expect(len({spec.dtype for spec in specs}) == 1, "inputs of one dtype", ", ".join(str(s) for s in specs))


def expect_terms(specs: Sequence[TensorSpec], role: str) -> None:
    """Require tensors that can be added: all of one shape and one numeric dtype."""
    expect_same_dtype(specs)
    expect_dtype(specs[0], NUMERIC)
    expect(len({spec.shape for spec in specs}) == 1, f"{role} of one shape", [spec.shape for spec in specs])


def expect_floats(specs: Sequence[TensorSpec]) -> None:
    """Require that all tensors have one float dtype."""
    expect_same_dtype(specs)
    expect_dtype(specs[0], FLOATS)


def expect_result_dtype(dtype: str, spec: TensorSpec) -> None:
    """Require that the result of a sum of products has the input's dtype or the corresponding state dtype."""
    allowed = dict.fromkeys((spec.dtype, state_dtype(spec.dtype)))
    expect(dtype in allowed, f"a result of dtype {' or '.join(allowed)} for {spec}", dtype)


def expect_rank(spec: TensorSpec, rank: int, role: str) -> None:
    """Require that a tensor has ``rank`` dimensions."""
    expect(spec.rank == rank, f"{role} with {rank} dimensions", spec)


def expect_axes(axes: Sequence[int], rank: int) -> None:
    """Require strictly increasing axes within 0..rank-1, the canonical form of axes in attributes."""
    canonical = list(axes) == sorted(set(axes)) and all(0 <= axis < rank for axis in axes)
    expect(canonical, f"increasing axes within 0..{rank - 1}", tuple(axes))


def canonical_axis(axis: int, rank: int) -> int:
    """Return ``axis``, or ``axis + rank`` if it is negative. The op's shape rule checks that the axis is in range."""
    return axis + rank if axis < 0 else axis


def axes_size(shape: Sequence[int], axes: Sequence[int]) -> int:
    """Return the number of elements along the given axes."""
    return math.prod(shape[axis] for axis in axes)


def declared_spec(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    """Return the spec with a shape and dtype from attributes; raises ShapeError for a negative extent."""
    expect(min(shape, default=0) >= 0, "a shape without negative extents", shape)
    return TensorSpec(shape, dtype)


def declared(*, shape: tuple[int, ...], dtype: str, **others: Any) -> Specs:
    """The shape rule of ops with one output, whose spec is given by the attributes ``shape`` and ``dtype``."""
    return [declared_spec(shape, dtype)]


def like_input(dtypes: Sequence[str] = FLOATS) -> InferRule:
    """Return the shape rule of ops with one input, whose dtype is in ``dtypes``, and one output of the same spec."""

    def infer(x: TensorSpec, **attributes: Any) -> Specs:
        expect_dtype(x, dtypes)
        return [x]

    return infer


def broadcast_shape(specs: Sequence[TensorSpec]) -> tuple[int, ...]:
    """Return the shape to which NumPy broadcasts these tensors together."""
    try:
        return np.broadcast_shapes(*(spec.shape for spec in specs))
    except ValueError:
        shapes = ", ".join(str(spec.shape) for spec in specs)
        raise ShapeError(f"expected shapes that broadcast together, got {shapes}") from None


def window_counts(
    image: TensorSpec, window: Sequence[int], strides: Sequence[int], padding: Sequence[int]
) -> tuple[int, int]:
    """Return the numbers of windows down and across an (N, C, H, W) image; raises ShapeError if one of them is 0.

    Windows slide over the padded image. strides: (rows, columns); padding: (top, bottom, left, right). A window that
    would extend beyond the padded image does not count: count = (extent + padding - window) // stride + 1 per axis.
    """
    expect(len(window) == 2 and min(window) > 0, "a window with two positive extents", tuple(window))
    expect(len(strides) == 2 and min(strides) > 0, "two positive strides", tuple(strides))
    expect(len(padding) == 4 and min(padding) >= 0, "four non-negative paddings", tuple(padding))
    top, bottom, left, right = padding
    rows = (image.shape[2] + top + bottom - window[0]) // strides[0] + 1
    columns = (image.shape[3] + left + right - window[1]) // strides[1] + 1
    expect(rows > 0 and columns > 0, f"an image that holds window {tuple(window)} with padding {padding}", image)
    return rows, columns


def input_flops(per_element: int) -> FlopsRule:
    """Return the cost rule of ops with ``per_element`` floating-point operations per element of the first input."""

    def flops(inputs: Specs, outputs: Specs, attributes: Attributes) -> int:
        return per_element * inputs[0].size

    return flops


def sum_flops(inputs: Specs, outputs: Specs, attributes: Attributes) -> int:
    """Return the number of floating-point operations of an element-wise sum of all inputs."""
    return (len(inputs) - 1) * outputs[0].size


def single_output(rule: Callable[[Builder, Node, Tensor], Sequence[Tensor | None]]) -> GradientRule:
    """Return the gradient rule of an op with one output; ``rule`` receives only the gradient of this output."""

    def adapted(graph: Builder, node: Node, totals: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        (dy,) = totals
        assert dy is not None, "autodiff applies a rule only when a gradient has arrived"
        return rule(graph, node, dy)

    return adapted


def elementwise_gradient(formula: Formula) -> GradientRule:
    """Return the gradient rule of an element-wise op with output y. formula: (dy, y, *inputs) -> gradients.

    The formula returns a list with one gradient per input or, if there is only one input, the gradient itself. None
    means that no gradient flows to the input. The rule sums each gradient over the axes where its input was broadcast.
    """

    def rule(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
        found = formula(*(Expr(graph, tensor) for tensor in (dy, node[0], *node.inputs)))
        partials = [found] if found is None or isinstance(found, Expr) else found
        return [
            None if partial is None else unbroadcast(graph, partial.tensor, graph.spec(tensor).shape)
            for partial, tensor in zip(partials, node.inputs, strict=True)
        ]

    return single_output(rule)


class Unary(Protocol):
    """A function that adds a node with one input and returns the output of the node."""

    def __call__(self, graph: Builder, x: Tensor, *, name: str | None = None) -> Tensor: ...


class Binary(Protocol):
    """A function that adds a node with two inputs and returns the output of the node."""

    def __call__(self, graph: Builder, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor: ...


def unary(
    op: str,
    doc: str,
    gradient: Formula,
    dtypes: Sequence[str] = FLOATS,
    *,
    infer: InferRule | None = None,
    flops: FlopsRule = output_flops,
) -> Unary:
    """Register an element-wise op of one input and return the function that adds its nodes. gradient: gradient formula.

    infer: shape rule; by default the input has a dtype in ``dtypes`` and the output has the same spec as the input.
    """
    register(OpDef(op, infer or like_input(dtypes), elementwise_gradient(gradient), 1, flops=flops))

    def build(graph: Builder, x: Tensor, *, name: str | None = None) -> Tensor:
        return graph.add(op, [x], name=name)[0]

    build.__name__, build.__doc__ = op, doc
    return build


def binary(
    op: str, doc: str, gradient: Formula | NotDifferentiable, dtypes: Sequence[str] = FLOATS, *, result: str = ""
) -> Binary:
    """Register an element-wise op of two broadcast inputs, and return the function that adds its nodes.

    gradient: gradient formula. dtypes: allowed input dtypes. result: output dtype, by default the dtype of the inputs.
    """
    rule = gradient if isinstance(gradient, NotDifferentiable) else elementwise_gradient(gradient)

    def infer(*specs: TensorSpec) -> Specs:
        expect_same_dtype(specs)
        expect_dtype(specs[0], dtypes)
        return [TensorSpec(broadcast_shape(specs), result or specs[0].dtype)]

    register(OpDef(op, infer, rule, 2))

    def build(graph: Builder, a: Tensor, b: Tensor, *, name: str | None = None) -> Tensor:
        return graph.add(op, [a, b], name=name)[0]

    build.__name__, build.__doc__ = op, doc
    return build


def decomposition(formula: Callable[..., Sequence[Expr]]) -> Decomposition:
    """Return the decomposition rule of a formula: formula(attributes, *inputs) -> one expression per output."""

    def decompose(graph: Builder, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
        return [output.tensor for output in formula(attributes, *(Expr(graph, tensor) for tensor in inputs))]

    return decompose


def copy_to_all(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    """Return dy as the gradient of every input: the gradient rule of a sum."""
    return [dy] * len(node.inputs)


def unbroadcast(graph: Builder, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Add nodes that sum a tensor over the axes along which ``shape`` was broadcast: the adjoint of broadcasting.

    With inner products < , >: <broadcast(x), g> = <x, unbroadcast(g)> for all x of ``shape`` and all g like ``tensor``.
    """
    wide = graph.spec(tensor).shape
    added = len(wide) - len(shape)
    axes = [axis for axis, extent in enumerate(wide) if axis < added or (shape[axis - added] == 1 and extent != 1)]
    if axes:
        tensor = graph.add("reduce_sum", [tensor], {"axes": axes, "keepdims": False})[0]
    if graph.spec(tensor).shape != tuple(shape):
        tensor = graph.add("reshape", [tensor], {"shape": tuple(shape)})[0]
    return tensor
