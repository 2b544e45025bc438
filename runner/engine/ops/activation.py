"""Activation functions."""

from __future__ import annotations

from collections.abc import Sequence

from runner.engine.graph import Graph, Node
from runner.engine.op import Attributes, OpDef, expect, register
from runner.engine.ops.arithmetic import exp, mul, sub
from runner.engine.ops.common import (
    expect_dtype,
    expect_same_dtype,
    float_like_input,
    input_flops,
    scalar,
    single_output,
)
from runner.engine.ops.reduction import reduce_sum
from runner.engine.tensor import FLOATS, Tensor, TensorSpec


def relu(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add max(x, 0), any shape; the derivative at 0 is 0 (Nair and Hinton 2010)."""
    return graph.add("relu", [x], name=name)[0]


def relu_gradient(graph: Graph, dy: Tensor, y: Tensor, *, name: str | None = None) -> Tensor:
    """Add dy where y > 0 and 0 elsewhere; y is the output of the relu, of dy's shape."""
    return graph.add("relu_gradient", [dy, y], name=name)[0]


def sigmoid(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add 1 / (1 + e ** -x), any shape, without overflow."""
    return graph.add("sigmoid", [x], name=name)[0]


def tanh(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add the hyperbolic tangent of x, any shape."""
    return graph.add("tanh", [x], name=name)[0]


def softmax(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add e ** x / sum(e ** x) over the last axis of x, without overflow."""
    return graph.add("softmax", [x], name=name)[0]


def log_softmax(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add x - log(sum(e ** x)) over the last axis of x, without overflow."""
    return graph.add("log_softmax", [x], name=name)[0]


def softmax_gradient(graph: Graph, y: Tensor, dy: Tensor) -> Tensor:
    """Add dx = y * (dy - sum(dy * y)) for y = softmax(x) over the last axis."""
    inner = reduce_sum(graph, mul(graph, dy, y), axes=[-1], keepdims=True)
    return mul(graph, y, sub(graph, dy, inner))


def _infer_relu_gradient(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    dy, y = specs
    expect_same_dtype("relu_gradient", specs)
    expect_dtype("relu_gradient", dy, FLOATS)
    expect(dy.shape == y.shape, "relu_gradient", "dy and y of one shape", f"{dy} and {y}")
    return [dy]


def _infer_last_axis(op: str, spec: TensorSpec) -> Sequence[TensorSpec]:
    expect_dtype(op, spec, FLOATS)
    expect(spec.rank > 0 and spec.shape[-1] > 0, op, "a last axis that is not empty", spec)
    return [spec]


def _infer_softmax(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    return _infer_last_axis("softmax", specs[0])


def _infer_log_softmax(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    return _infer_last_axis("log_softmax", specs[0])


def _relu_rule(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [relu_gradient(graph, dy, node[0])]


def _relu_gradient_rule(graph: Graph, node: Node, ddx: Tensor) -> Sequence[Tensor | None]:
    # Piecewise constant in y, so only dy has a gradient.
    return [relu_gradient(graph, ddx, node.inputs[1]), None]


def _sigmoid_rule(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    y = node[0]
    return [mul(graph, dy, mul(graph, y, sub(graph, scalar(graph, 1.0, y), y)))]


def _tanh_rule(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    y = node[0]
    return [mul(graph, dy, sub(graph, scalar(graph, 1.0, y), mul(graph, y, y)))]


def _softmax_rule(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [softmax_gradient(graph, node[0], dy)]


def _log_softmax_rule(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    total = reduce_sum(graph, dy, axes=[-1], keepdims=True)
    return [sub(graph, dy, mul(graph, exp(graph, node[0]), total))]


register(OpDef("relu", float_like_input("relu"), single_output(_relu_rule), arity=1))
register(OpDef("relu_gradient", _infer_relu_gradient, single_output(_relu_gradient_rule), arity=2))
register(OpDef("sigmoid", float_like_input("sigmoid"), single_output(_sigmoid_rule), 1, flops=input_flops(4)))
register(OpDef("tanh", float_like_input("tanh"), single_output(_tanh_rule), 1, flops=input_flops(4)))
register(OpDef("softmax", _infer_softmax, single_output(_softmax_rule), 1, flops=input_flops(5)))
register(OpDef("log_softmax", _infer_log_softmax, single_output(_log_softmax_rule), 1, flops=input_flops(5)))
