"""Convolution (cross-correlation) of images and its two adjoints. The gradient rules add only these ops and casts.

Two further ops combine several operations in one pass over memory:

* ``conv2d_fused``: y = conv2d(x, w) + bias + residual, summed in this order, then max(y, 0) if ``relu``. bias: (O,),
  one number per output channel. residual: shape of y. A bias or residual is an input only if its attribute is true.
* ``conv2d_weight_bias_gradient``: maps dy and x to dw, the result of conv2d_weight_gradient, and to db (O,), the sum of
  dy over examples and pixels. dtype: dtype of dw and db, either that of the inputs or, for bfloat16 inputs, float32.
"""

import math
from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.node import Node
from runner.engine.graph.op import Attributes, Builder, FlopsRule, OpDef, Specs, expect, register
from runner.engine.graph.ops.activation import relu as add_relu
from runner.engine.graph.ops.common import (
    MADE_BY_PASSES,
    declared_spec,
    decomposition,
    expect_floats,
    expect_rank,
    expect_result_dtype,
    single_output,
    window_counts,
)
from runner.engine.graph.ops.reduction import reduce_sum
from runner.engine.graph.ops.shape import reshape
from runner.engine.graph.ops.structural import as_dtype
from runner.engine.graph.tensor import Tensor, TensorSpec

GEOMETRY = {"strides": "ints", "padding": "ints", "dilations": "ints", "groups": "int"}
"""Attributes that all convolution ops have; see :class:`Geometry`."""


class Geometry(TypedDict, total=False):
    """Strides, padding, dilations and groups of a convolution; omitted attributes have their defaults.

    strides: (rows, columns), default (1, 1). padding: (top, bottom, left, right), default 0. dilations: (rows,
    columns), the distances between adjacent pixels of a window, default (1, 1). groups: default 1. With G groups,
    input and output channels are split into G equal blocks, and output block g depends only on input block g
    (Krizhevsky, Sutskever and Hinton 2012, sec. 3.5).
    """

    strides: Sequence[int]
    padding: Sequence[int]
    dilations: Sequence[int]
    groups: int


def complete(geometry: Geometry) -> dict[str, Any]:
    """Return the attributes of a convolution, with defaults for omitted attributes."""
    return {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1, **geometry}


def conv2d(graph: Builder, x: Tensor, w: Tensor, *, name: str | None = None, **geometry: Unpack[Geometry]) -> Tensor:
    """Add a node for y[n, o, r, c] = sum over i, u, v of x[n, i, r*sr + u*dr - top, c*sc + v*dc - left] w[o, i, u, v].

    x: (N, C, H, W); w: (O, C/groups, R, S); strides: (sr, sc); dilations: (dr, dc); y: (N, O, H', W'). For H' and W',
    see :func:`window_counts`, with windows of (R - 1) dr + 1 by (S - 1) dc + 1 pixels.
    """
    return graph.add("conv2d", [x, w], complete(geometry), name=name)[0]


def conv2d_input_gradient(
    graph: Builder, dy: Tensor, w: Tensor, *, input_shape: Sequence[int], **geometry: Unpack[Geometry]
) -> Tensor:
    """Add a node for dx of ``input_shape`` with <conv2d(x, w), dy> = <x, dx> for all x: the transposed convolution."""
    attributes = {**complete(geometry), "input_shape": tuple(input_shape)}
    return graph.add("conv2d_input_gradient", [dy, w], attributes)[0]


def conv2d_weight_gradient(
    graph: Builder,
    dy: Tensor,
    x: Tensor,
    *,
    weight_shape: Sequence[int],
    dtype: str | None = None,
    **geometry: Unpack[Geometry],
) -> Tensor:
    """Add a node for dw of ``weight_shape`` with <conv2d(x, w), dy> = <w, dw> for all w; examples are summed in order.

    dtype: dtype of dw, by default the dtype of dy and x; if this is bfloat16, ``dtype`` may also be float32.
    """
    attributes = {**complete(geometry), "weight_shape": tuple(weight_shape), "dtype": dtype or graph.spec(dy).dtype}
    return graph.add("conv2d_weight_gradient", [dy, x], attributes)[0]


def output_shape(x: TensorSpec, w: TensorSpec, attributes: Attributes) -> tuple[int, ...]:
    """Return the shape of y for images x and filters w, after checking that x and w are compatible."""
    expect_rank(x, 4, "x (N, C, H, W)")
    expect_rank(w, 4, "w (O, C/groups, R, S)")
    groups = attributes["groups"]
    expect(groups > 0 and w.shape[0] % groups == 0, f"outputs in {groups} equal groups", w)
    channels = w.shape[1] * groups
    expect(x.shape[1] == channels, f"x with {channels} channels for w {w} and {groups} groups", x)
    counts = window_counts(x, _extents(w, attributes["dilations"]), attributes["strides"], attributes["padding"])
    return (x.shape[0], w.shape[0], *counts)


def _extents(w: TensorSpec, dilations: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of rows and columns of an image that a window of filters w covers."""
    expect(len(dilations) == 2 and min(dilations) > 0, "two positive dilations", tuple(dilations))
    return tuple((size - 1) * step + 1 for size, step in zip(w.shape[2:], dilations, strict=True))


def _infer_forward(x: TensorSpec, w: TensorSpec, **geometry: Any) -> Specs:
    expect_floats([x, w])
    return [TensorSpec(output_shape(x, w, geometry), x.dtype)]


def _infer_input_gradient(dy: TensorSpec, w: TensorSpec, *, input_shape: tuple[int, ...], **geometry: Any) -> Specs:
    expect_floats([dy, w])
    x = declared_spec(input_shape, dy.dtype)
    _expect_output_gradient(dy, x, w, geometry)
    return [x]


def _infer_weight_gradient(
    dy: TensorSpec, x: TensorSpec, *, weight_shape: tuple[int, ...], dtype: str, **geometry: Any
) -> Specs:
    expect_floats([dy, x])
    expect_result_dtype(dtype, dy)
    w = declared_spec(weight_shape, dtype)
    _expect_output_gradient(dy, x, w, geometry)
    return [w]


def _expect_output_gradient(dy: TensorSpec, x: TensorSpec, w: TensorSpec, attributes: Attributes) -> None:
    expected = output_shape(x, w, attributes)
    expect(dy.shape == expected, f"dy of shape {expected} for x {x} and w {w}", dy)


def _geometry(attributes: Attributes) -> Any:
    return {name: attributes[name] for name in GEOMETRY}


def _dx(graph: Builder, node: Node, dy: Tensor, w: Tensor, x: Tensor) -> Tensor:
    return conv2d_input_gradient(graph, dy, w, input_shape=graph.spec(x).shape, **_geometry(node.attributes))


def _dw(graph: Builder, node: Node, dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
    spec, geometry = graph.spec(w), _geometry(node.attributes)
    return conv2d_weight_gradient(graph, dy, x, weight_shape=spec.shape, dtype=spec.dtype, **geometry)


# <conv2d(x, w), dy> is linear in x, w and dy. Each op takes two of these and returns the derivative with respect to the
# third. The op's gradient rule adds the other two ops, which take the gradient of the op's output as the third tensor.


@single_output
def _forward_rule(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    x, w = node.inputs
    return [_dx(graph, node, dy, w, x), _dw(graph, node, dy, x, w)]


@single_output
def _input_gradient_rule(graph: Builder, node: Node, x: Tensor) -> Sequence[Tensor | None]:
    dy, w = node.inputs
    return [conv2d(graph, x, w, **_geometry(node.attributes)), _dw(graph, node, dy, x, w)]


@single_output
def _weight_gradient_rule(graph: Builder, node: Node, w: Tensor) -> Sequence[Tensor | None]:
    dy, x = node.inputs
    w = as_dtype(graph, w, graph.spec(x).dtype)
    return [conv2d(graph, x, w, **_geometry(node.attributes)), _dx(graph, node, dy, w, x)]


def convolution_flops(y: TensorSpec, w: TensorSpec) -> int:
    """Return the number of floating-point operations of a convolution with these y and w, or of one of its adjoints."""
    return 2 * y.size * math.prod(w.shape[1:])


def _infer_fused(*specs: TensorSpec, bias: bool, residual: bool, relu: bool, **geometry: Any) -> Specs:
    wanted = 2 + bias + residual
    expect(len(specs) == wanted, f"{wanted} inputs", len(specs))
    expect_floats(specs)
    x, w, *added = specs
    y = TensorSpec(output_shape(x, w, geometry), x.dtype)
    if bias:
        vector = TensorSpec((w.shape[0],), x.dtype)
        expect(added[0] == vector, f"one bias per output channel, {vector}", added[0])
    if residual:
        expect(added[-1] == y, f"a residual like y, {y}", added[-1])
    return [y]


def _infer_bias_gradient(dy: TensorSpec, x: TensorSpec, **attributes: Any) -> Specs:
    (w,) = _infer_weight_gradient(dy, x, **attributes)
    return [w, TensorSpec((w.shape[0],), w.dtype)]


@decomposition
def _decompose_fused(attributes: Attributes, x: Expr, w: Expr, *added: Expr) -> Sequence[Expr]:
    y = apply(conv2d, x, w, **_geometry(attributes))
    if attributes["bias"]:
        y = y + apply(reshape, added[0], shape=(-1, 1, 1))
    if attributes["residual"]:
        y = y + added[-1]
    return [apply(add_relu, y) if attributes["relu"] else y]


@decomposition
def _decompose_bias_gradient(attributes: Attributes, dy: Expr, x: Expr) -> Sequence[Expr]:
    dw = apply(conv2d_weight_gradient, dy, x, **attributes)
    return [dw, apply(reduce_sum, apply(as_dtype, dy, dtype=attributes["dtype"]), axes=(0, 2, 3))]


def _fused_flops(inputs: Specs, outputs: Specs, attributes: Attributes) -> int:
    (y,) = outputs
    following: int = attributes["bias"] + attributes["residual"] + attributes["relu"]
    return convolution_flops(y, inputs[1]) + following * y.size


def _flops(y: int, w: int) -> FlopsRule:
    """Return the cost rule of an op. y, w: positions of these tensors among all inputs followed by all outputs."""
    return lambda inputs, outputs, _: convolution_flops((*inputs, *outputs)[y], (*inputs, *outputs)[w])


_TO_INPUT = {**GEOMETRY, "input_shape": "ints"}
_TO_WEIGHT = {**GEOMETRY, "weight_shape": "ints", "dtype": "dtype"}
_FUSED = {**GEOMETRY, "bias": "bool", "residual": "bool", "relu": "bool"}

register(
    OpDef("conv2d", _infer_forward, _forward_rule, 2, GEOMETRY, _flops(y=2, w=1)),
    OpDef("conv2d_input_gradient", _infer_input_gradient, _input_gradient_rule, 2, _TO_INPUT, _flops(y=0, w=1)),
    OpDef("conv2d_weight_gradient", _infer_weight_gradient, _weight_gradient_rule, 2, _TO_WEIGHT, _flops(y=0, w=2)),
    OpDef("conv2d_fused", _infer_fused, MADE_BY_PASSES, None, _FUSED, _fused_flops, decompose=_decompose_fused),
    OpDef(
        "conv2d_weight_bias_gradient",
        _infer_bias_gradient,
        MADE_BY_PASSES,
        arity=2,
        attributes=_TO_WEIGHT,
        flops=lambda inputs, outputs, attributes: convolution_flops(inputs[0], outputs[0]) + inputs[0].size,
        decompose=_decompose_bias_gradient,
    ),
)
