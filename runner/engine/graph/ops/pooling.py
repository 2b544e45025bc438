"""Max and average pooling over (N, C, H, W) images, and the linear ops that compute their gradients.

Padding must be smaller than the window on every side, so that every window overlaps the image.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NotRequired, TypedDict, Unpack

from runner.engine.graph.node import Node
from runner.engine.graph.op import Attributes, Builder, OpDef, Specs, expect, register
from runner.engine.graph.ops.common import (
    declared_spec,
    expect_dtype,
    expect_rank,
    input_flops,
    single_output,
    window_counts,
)
from runner.engine.graph.tensor import FLOATS, Tensor, TensorSpec


class Pooling(TypedDict):
    """Attributes of all pooling ops: window and strides (rows, columns), padding (top, bottom, left, right)."""

    window: Sequence[int]
    strides: Sequence[int]
    padding: NotRequired[Sequence[int]]


def max_pool(
    graph: Builder, x: Tensor, *, name: str | None = None, **pooling: Unpack[Pooling]
) -> tuple[Tensor, Tensor]:
    """Add a node for (y, argmax): the maximum of each window and its int32 position in the window (by row, from 0).

    x: (N, C, H, W) float; y, argmax: (N, C, H', W'). Padding is never the maximum. If several elements equal the
    maximum, argmax is the position of the first. The maximum of a window with a NaN is NaN. If all elements are minus
    infinity, argmax is 0; if that position is padding, no element receives the gradient.
    """
    node = graph.add("max_pool", [x], _complete(pooling), name=name)
    return node[0], node[1]


def max_pool_gradient(
    graph: Builder, dy: Tensor, argmax: Tensor, *, input_shape: Sequence[int], **pooling: Unpack[Pooling]
) -> Tensor:
    """Add a node for dx of ``input_shape``: dy is added at the argmax of each window (adjoint of max_pool_gather)."""
    attributes = {**_complete(pooling), "input_shape": tuple(input_shape)}
    return graph.add("max_pool_gradient", [dy, argmax], attributes)[0]


def max_pool_gather(graph: Builder, x: Tensor, argmax: Tensor, **pooling: Unpack[Pooling]) -> Tensor:
    """Add a node for the element of x at the argmax of every window; the adjoint of max_pool_gradient."""
    return graph.add("max_pool_gather", [x, argmax], _complete(pooling))[0]


def avg_pool(
    graph: Builder, x: Tensor, *, count_padding: bool = False, name: str | None = None, **pooling: Unpack[Pooling]
) -> Tensor:
    """Add a node for the mean of every window of x, (N, C, H, W) float.

    count_padding: divide by the window size; otherwise, divide by the number of the window's pixels inside the image.
    """
    return graph.add("avg_pool", [x], {**_complete(pooling), "count_padding": count_padding}, name=name)[0]


def avg_pool_gradient(
    graph: Builder, dy: Tensor, *, input_shape: Sequence[int], count_padding: bool = False, **pooling: Unpack[Pooling]
) -> Tensor:
    """Add a node for dx of ``input_shape`` with <avg_pool(x), dy> = <x, dx> for every x."""
    attributes = {**_complete(pooling), "count_padding": count_padding, "input_shape": tuple(input_shape)}
    return graph.add("avg_pool_gradient", [dy], attributes)[0]


def _complete(pooling: Pooling) -> dict[str, Any]:
    return {"padding": (0, 0, 0, 0), **pooling}


def _pooled_shape(x: TensorSpec, attributes: Attributes) -> tuple[int, ...]:
    expect_dtype(x, FLOATS)
    expect_rank(x, 4, "x (N, C, H, W)")
    window, padding = attributes["window"], attributes["padding"]
    counts = window_counts(x, window, attributes["strides"], padding)
    inside = max(padding[:2]) < window[0] and max(padding[2:]) < window[1]
    expect(inside, f"padding smaller than the window {window} on every side", padding)
    return (*x.shape[:2], *counts)


def _infer_gradient(dy: TensorSpec, *argmax: TensorSpec, input_shape: tuple[int, ...], **pooling: Any) -> Specs:
    x = declared_spec(input_shape, dy.dtype)
    _expect_pooled(x, dy, dy.dtype, pooling)
    for each in argmax:
        _expect_pooled(x, each, "int32", pooling)
    return [x]


def _expect_pooled(x: TensorSpec, pooled: TensorSpec, dtype: str, attributes: Attributes) -> None:
    expected = TensorSpec(_pooled_shape(x, attributes), dtype)
    expect(pooled == expected, f"{expected} for x {x}", pooled)


def _infer_max_pool(x: TensorSpec, **pooling: Any) -> Specs:
    shape = _pooled_shape(x, pooling)
    return [TensorSpec(shape, x.dtype), TensorSpec(shape, "int32")]


def _infer_max_pool_gather(x: TensorSpec, argmax: TensorSpec, **pooling: Any) -> Specs:
    _expect_pooled(x, argmax, "int32", pooling)
    return [TensorSpec(argmax.shape, x.dtype)]


def _only(node: Node, names: Iterable[str]) -> dict[str, Any]:
    return {name: node.attributes[name] for name in names}


def _scatter(graph: Builder, node: Node, dy: Tensor, argmax: Tensor, x: Tensor) -> Tensor:
    return max_pool_gradient(graph, dy, argmax, input_shape=graph.spec(x).shape, **_only(node, _WINDOW))


def _max_pool_rule(graph: Builder, node: Node, totals: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    dy = totals[0]
    assert dy is not None, "the positions are integers, so a gradient arrives at y only"
    return [_scatter(graph, node, dy, node[1], node.inputs[0])]


@single_output
def _max_pool_gradient_rule(graph: Builder, node: Node, ddx: Tensor) -> Sequence[Tensor | None]:
    return [max_pool_gather(graph, ddx, node.inputs[1], **_only(node, _WINDOW)), None]


@single_output
def _max_pool_gather_rule(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [_scatter(graph, node, dy, node.inputs[1], node.inputs[0]), None]


@single_output
def _avg_pool_rule(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    shape = graph.spec(node.inputs[0]).shape
    return [avg_pool_gradient(graph, dy, input_shape=shape, **_only(node, _AVERAGE))]


@single_output
def _avg_pool_gradient_rule(graph: Builder, node: Node, ddx: Tensor) -> Sequence[Tensor | None]:
    return [avg_pool(graph, ddx, **_only(node, _AVERAGE))]


def _window_flops(inputs: Specs, outputs: Specs, attributes: Attributes) -> int:
    return outputs[0].size * math.prod(attributes["window"])


_WINDOW = {"window": "ints", "strides": "ints", "padding": "ints"}
_AVERAGE = {**_WINDOW, "count_padding": "bool"}
_TO_INPUT = {"input_shape": "ints"}

register(
    OpDef("max_pool", _infer_max_pool, _max_pool_rule, 1, _WINDOW, _window_flops),
    OpDef("max_pool_gradient", _infer_gradient, _max_pool_gradient_rule, 2, _WINDOW | _TO_INPUT, input_flops(1)),
    OpDef("max_pool_gather", _infer_max_pool_gather, _max_pool_gather_rule, 2, _WINDOW),
    OpDef(
        "avg_pool",
        lambda x, **pooling: [TensorSpec(_pooled_shape(x, pooling), x.dtype)],
        _avg_pool_rule,
        arity=1,
        attributes=_AVERAGE,
        flops=_window_flops,
    ),
    OpDef("avg_pool_gradient", _infer_gradient, _avg_pool_gradient_rule, 1, _AVERAGE | _TO_INPUT, input_flops(1)),
)
