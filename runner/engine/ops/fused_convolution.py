"""Convolution with what follows it, and its weight gradient with that of the bias: each in one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence

from runner.engine.graph import Graph
from runner.engine.op import Attributes, OpDef, expect, register
from runner.engine.ops.activation import relu as add_relu
from runner.engine.ops.arithmetic import add
from runner.engine.ops.common import MADE_BY_PASSES
from runner.engine.ops.convolution import (
    GEOMETRY,
    conv2d,
    conv2d_weight_gradient,
    convolution_flops,
    expect_floats,
    output_shape,
    weight_spec,
)
from runner.engine.ops.reduction import reduce_sum
from runner.engine.ops.shape import reshape
from runner.engine.ops.structural import as_dtype
from runner.engine.tensor import Tensor, TensorSpec


def conv2d_fused(
    graph: Graph,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    strides: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    groups: int = 1,
    relu: bool = False,
    name: str | None = None,
) -> Tensor:
    """Add y = conv2d(x, w) + bias + residual, summed in this order, then max(y, 0) if ``relu``.

    x, w: as for conv2d. bias: (O,), one number per output channel. residual: like y.
    """
    inputs = [tensor for tensor in (x, w, bias, residual) if tensor is not None]
    attributes = {
        "strides": tuple(strides),
        "padding": tuple(padding),
        "groups": groups,
        "bias": bias is not None,
        "residual": residual is not None,
        "relu": relu,
    }
    return graph.add("conv2d_fused", inputs, attributes, name=name)[0]


def conv2d_weight_bias_gradient(
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
) -> tuple[Tensor, Tensor]:
    """Add (dw, db): conv2d_weight_gradient, and db (O,), the sum of dy over examples and pixels, in its dtype."""
    attributes = {
        "strides": tuple(strides),
        "padding": tuple(padding),
        "groups": groups,
        "weight_shape": tuple(weight_shape),
        "dtype": dtype or graph.spec(dy).dtype,
    }
    node = graph.add("conv2d_weight_bias_gradient", [dy, x], attributes, name=name)
    return node[0], node[1]


def _infer_fused(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    op = "conv2d_fused"
    wanted = 2 + attributes["bias"] + attributes["residual"]
    expect(len(specs) == wanted, op, f"{wanted} inputs", len(specs))
    expect_floats(op, specs)
    x, w, *added = specs
    y = TensorSpec(output_shape(op, x, w, attributes), x.dtype)
    if attributes["bias"]:
        bias = TensorSpec((w.shape[0],), x.dtype)
        expect(added[0] == bias, op, f"one bias per output channel, {bias}", added[0])
    if attributes["residual"]:
        expect(added[-1] == y, op, f"a residual like y, {y}", added[-1])
    return [y]


def _infer_gradient(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    w = weight_spec("conv2d_weight_bias_gradient", specs, attributes)
    return [w, TensorSpec((w.shape[0],), w.dtype)]


def _decompose_fused(graph: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    x, w, *added = inputs
    y = conv2d(graph, x, w, **{key: attributes[key] for key in GEOMETRY})
    if attributes["bias"]:
        y = add(graph, y, reshape(graph, added[0], (-1, 1, 1)))
    if attributes["residual"]:
        y = add(graph, y, added[-1])
    return [add_relu(graph, y) if attributes["relu"] else y]


def _decompose_gradient(graph: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> Sequence[Tensor]:
    dy, x = inputs
    dw = conv2d_weight_gradient(graph, dy, x, **attributes)
    return [dw, reduce_sum(graph, as_dtype(graph, dy, attributes["dtype"]), (0, 2, 3))]


def _fused_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    (y,) = outputs
    following: int = attributes["bias"] + attributes["residual"] + attributes["relu"]
    return convolution_flops(y, inputs[1]) + following * y.size


def _gradient_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    return convolution_flops(inputs[0], outputs[0]) + inputs[0].size


register(
    OpDef(
        "conv2d_fused",
        _infer_fused,
        MADE_BY_PASSES,
        arity=None,
        attributes={**GEOMETRY, "bias": "bool", "residual": "bool", "relu": "bool"},
        flops=_fused_flops,
        decompose=_decompose_fused,
    )
)
register(
    OpDef(
        "conv2d_weight_bias_gradient",
        _infer_gradient,
        MADE_BY_PASSES,
        arity=2,
        attributes={**GEOMETRY, "weight_shape": "ints", "dtype": "dtype"},
        flops=_gradient_flops,
        decompose=_decompose_gradient,
    )
)
