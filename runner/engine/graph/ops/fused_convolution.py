"""Convolution with what follows it, and its weight gradient with that of the bias: each in one pass over memory.

* ``conv2d_fused``: y = conv2d(x, w) + bias + residual, summed in this order, then max(y, 0) if ``relu``. bias: (O,),
  one number per output channel, an input if ``bias``. residual: like y, an input if ``residual``.
* ``conv2d_weight_bias_gradient``: (dw, db) of dy and x: conv2d_weight_gradient, and db (O,), the sum of dy over
  examples and pixels. dtype: of both; float32 is possible for bfloat16 inputs.
"""

from collections.abc import Sequence

from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.op import Attributes, OpDef, expect, register
from runner.engine.graph.ops.activation import relu as add_relu
from runner.engine.graph.ops.common import MADE_BY_PASSES, decomposition, expect_floats
from runner.engine.graph.ops.convolution import (
    GEOMETRY,
    conv2d,
    conv2d_weight_gradient,
    convolution_flops,
    output_shape,
    weight_spec,
)
from runner.engine.graph.ops.reduction import reduce_sum
from runner.engine.graph.ops.shape import reshape
from runner.engine.graph.ops.structural import as_dtype
from runner.engine.graph.tensor import TensorSpec


def _infer_fused(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    wanted = 2 + attributes["bias"] + attributes["residual"]
    expect(len(specs) == wanted, f"{wanted} inputs", len(specs))
    expect_floats(specs)
    x, w, *added = specs
    y = TensorSpec(output_shape(x, w, attributes), x.dtype)
    if attributes["bias"]:
        bias = TensorSpec((w.shape[0],), x.dtype)
        expect(added[0] == bias, f"one bias per output channel, {bias}", added[0])
    if attributes["residual"]:
        expect(added[-1] == y, f"a residual like y, {y}", added[-1])
    return [y]


def _infer_gradient(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    w = weight_spec(specs, attributes)
    return [w, TensorSpec((w.shape[0],), w.dtype)]


@decomposition
def _decompose_fused(attributes: Attributes, x: Expr, w: Expr, *added: Expr) -> Sequence[Expr]:
    y = apply(conv2d, x, w, **{key: attributes[key] for key in GEOMETRY})
    if attributes["bias"]:
        y = y + apply(reshape, added[0], shape=(-1, 1, 1))
    if attributes["residual"]:
        y = y + added[-1]
    return [apply(add_relu, y) if attributes["relu"] else y]


@decomposition
def _decompose_gradient(attributes: Attributes, dy: Expr, x: Expr) -> Sequence[Expr]:
    dw = apply(conv2d_weight_gradient, dy, x, **attributes)
    return [dw, apply(reduce_sum, apply(as_dtype, dy, dtype=attributes["dtype"]), axes=(0, 2, 3))]


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
