"""Convolution (cross-correlation) of images and its two adjoints, which are closed under differentiation.

Attributes of all three: strides (rows, columns), padding (top, bottom, left, right), groups. With G groups
the channels are cut into G equal runs and each run of outputs sees one run of inputs (Krizhevsky, Sutskever
and Hinton 2012, sec. 3.5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from runner.engine.graph import Graph, Node
from runner.engine.op import Attributes, OpDef, expect, register
from runner.engine.ops.common import (
    declared_spec,
    expect_dtype,
    expect_rank,
    expect_result_dtype,
    expect_same_dtype,
    single_output,
)
from runner.engine.ops.structural import as_dtype
from runner.engine.ops.windows import window_counts
from runner.engine.tensor import FLOATS, Tensor, TensorSpec

GEOMETRY = {"strides": "ints", "padding": "ints", "groups": "int"}
"""Attributes that say where the windows of a convolution lie."""


def conv2d(
    graph: Graph,
    x: Tensor,
    w: Tensor,
    *,
    strides: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    groups: int = 1,
    name: str | None = None,
) -> Tensor:
    """Add y[n, o, r, c] = sum over i, u, v of x[n, i, r*sr + u - top, c*sc + v - left] * w[o, i, u, v].

    x: (N, C, H, W); w: (O, C/groups, R, S); y: (N, O, (H + top + bottom - R) // sr + 1, likewise columns).
    """
    attributes = {"strides": tuple(strides), "padding": tuple(padding), "groups": groups}
    return graph.add("conv2d", [x, w], attributes, name=name)[0]


def conv2d_input_gradient(
    graph: Graph,
    dy: Tensor,
    w: Tensor,
    *,
    input_shape: Sequence[int],
    strides: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    groups: int = 1,
    name: str | None = None,
) -> Tensor:
    """Add dx of ``input_shape`` with <conv2d(x, w), dy> = <x, dx> for every x: the transposed convolution."""
    attributes = {
        "strides": tuple(strides),
        "padding": tuple(padding),
        "groups": groups,
        "input_shape": tuple(input_shape),
    }
    return graph.add("conv2d_input_gradient", [dy, w], attributes, name=name)[0]


def conv2d_weight_gradient(
    graph: Graph,
    dy: Tensor,
    x: Tensor,
    *,
    weight_shape: Sequence[int],
    strides: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    groups: int = 1,
    dtype: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Add dw of ``weight_shape`` with <conv2d(x, w), dy> = <w, dw> for every w; examples add in order.

    dtype: of dw, that of dy by default; float32 is possible for bfloat16 dy and x.
    """
    attributes = {
        "strides": tuple(strides),
        "padding": tuple(padding),
        "groups": groups,
        "weight_shape": tuple(weight_shape),
        "dtype": dtype or graph.spec(dy).dtype,
    }
    return graph.add("conv2d_weight_gradient", [dy, x], attributes, name=name)[0]


def output_shape(op: str, x: TensorSpec, w: TensorSpec, attributes: Attributes) -> tuple[int, ...]:
    """Shape of y for an image and filters, after checking that they fit each other."""
    expect_rank(op, x, 4, "x (N, C, H, W)")
    expect_rank(op, w, 4, "w (O, C/groups, R, S)")
    groups = attributes["groups"]
    expect(groups > 0 and w.shape[0] % groups == 0, op, f"outputs in {groups} equal groups", w)
    channels = w.shape[1] * groups
    expect(x.shape[1] == channels, op, f"x with {channels} channels for w {w} and {groups} groups", x)
    counts = window_counts(op, x, w.shape[2:], attributes["strides"], attributes["padding"])
    return (x.shape[0], w.shape[0], *counts)


def expect_floats(op: str, specs: Sequence[TensorSpec]) -> None:
    """Require one float dtype of all tensors."""
    expect_same_dtype(op, specs)
    expect_dtype(op, specs[0], FLOATS)


def _infer_forward(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    x, w = specs
    expect_floats("conv2d", specs)
    return [TensorSpec(output_shape("conv2d", x, w, attributes), x.dtype)]


def _infer_input_gradient(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    op = "conv2d_input_gradient"
    dy, w = specs
    expect_floats(op, specs)
    x = declared_spec(op, {"shape": attributes["input_shape"], "dtype": dy.dtype})
    expected = output_shape(op, x, w, attributes)
    expect(dy.shape == expected, op, f"dy of shape {expected} for x {x} and w {w}", dy)
    return [x]


def weight_spec(op: str, specs: Sequence[TensorSpec], attributes: Attributes) -> TensorSpec:
    """Spec of the filters whose gradient comes from dy and x, after checking that all fit each other."""
    dy, x = specs
    expect_floats(op, specs)
    expect_result_dtype(op, attributes["dtype"], dy)
    w = declared_spec(op, {"shape": attributes["weight_shape"], "dtype": attributes["dtype"]})
    expected = output_shape(op, x, w, attributes)
    expect(dy.shape == expected, op, f"dy of shape {expected} for x {x} and w {w}", dy)
    return w


def _infer_weight_gradient(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    return [weight_spec("conv2d_weight_gradient", specs, attributes)]


def _geometry(node: Node) -> dict[str, object]:
    return {name: node.attributes[name] for name in ("strides", "padding", "groups")}


def _dx(graph: Graph, node: Node, dy: Tensor, w: Tensor, x: Tensor) -> Tensor:
    attributes = {**_geometry(node), "input_shape": graph.spec(x).shape}
    return graph.add("conv2d_input_gradient", [dy, w], attributes)[0]


def _dw(graph: Graph, node: Node, dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
    attributes = {**_geometry(node), "weight_shape": graph.spec(w).shape, "dtype": graph.spec(w).dtype}
    return graph.add("conv2d_weight_gradient", [dy, x], attributes)[0]


def _y(graph: Graph, node: Node, x: Tensor, w: Tensor) -> Tensor:
    return graph.add("conv2d", [x, w], _geometry(node))[0]


# <y(x, w), dy> is linear in each of x, w and dy; each op is its derivative by one of them, so the gradient of
# each is made of the other two, with the arriving gradient in the place of what was left out.


def _forward_rule(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    x, w = node.inputs
    return [_dx(graph, node, dy, w, x), _dw(graph, node, dy, x, w)]


def _input_gradient_rule(graph: Graph, node: Node, x: Tensor) -> Sequence[Tensor | None]:
    dy, w = node.inputs
    return [_y(graph, node, x, w), _dw(graph, node, dy, x, w)]


def _weight_gradient_rule(graph: Graph, node: Node, w: Tensor) -> Sequence[Tensor | None]:
    dy, x = node.inputs
    w = as_dtype(graph, w, graph.spec(x).dtype)
    return [_y(graph, node, x, w), _dx(graph, node, dy, w, x)]


def convolution_flops(y: TensorSpec, w: TensorSpec) -> int:
    """Cost of a convolution with this output and these filters, and of each of its gradients."""
    return 2 * y.size * math.prod(w.shape[1:])


def _forward_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    return convolution_flops(outputs[0], inputs[1])


def _input_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    return convolution_flops(inputs[0], inputs[1])


def _weight_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    return convolution_flops(inputs[0], outputs[0])


register(OpDef("conv2d", _infer_forward, single_output(_forward_rule), 2, GEOMETRY, _forward_flops))
register(
    OpDef(
        "conv2d_input_gradient",
        _infer_input_gradient,
        single_output(_input_gradient_rule),
        arity=2,
        attributes={**GEOMETRY, "input_shape": "ints"},
        flops=_input_flops,
    )
)
register(
    OpDef(
        "conv2d_weight_gradient",
        _infer_weight_gradient,
        single_output(_weight_gradient_rule),
        arity=2,
        attributes={**GEOMETRY, "weight_shape": "ints", "dtype": "dtype"},
        flops=_weight_flops,
    )
)
