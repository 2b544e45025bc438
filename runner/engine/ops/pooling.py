"""Max and average pooling over (N, C, H, W) images, and the linear maps that are their adjoints.

Attributes of all: window (rows, columns), strides (rows, columns), padding (top, bottom, left, right).
Padding is smaller than the window on every side, so that every window sees the image.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from runner.engine.graph import Graph, Node
from runner.engine.op import Attributes, OpDef, expect, register
from runner.engine.ops.common import declared_spec, expect_dtype, expect_rank, input_flops, single_output
from runner.engine.ops.windows import window_counts
from runner.engine.tensor import FLOATS, Tensor, TensorSpec


def max_pool(
    graph: Graph,
    x: Tensor,
    *,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int] = (0, 0, 0, 0),
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Add (y, argmax): the maximum of every window and its int32 position in it, counted row by row.

    x: (N, C, H, W) float; y, argmax: (N, C, H', W'). Padding never wins; among equals the first position
    does; NaN in a window makes its maximum NaN.
    """
    return _pair(graph.add("max_pool", [x], _geometry(window, strides, padding), name=name))


def max_pool_gradient(
    graph: Graph,
    dy: Tensor,
    argmax: Tensor,
    *,
    input_shape: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int] = (0, 0, 0, 0),
    name: str | None = None,
) -> Tensor:
    """Add dx of ``input_shape``: every dy added where its argmax points to; adjoint of max_pool_gather."""
    attributes = {**_geometry(window, strides, padding), "input_shape": tuple(input_shape)}
    return graph.add("max_pool_gradient", [dy, argmax], attributes, name=name)[0]


def max_pool_gather(
    graph: Graph,
    x: Tensor,
    argmax: Tensor,
    *,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int] = (0, 0, 0, 0),
    name: str | None = None,
) -> Tensor:
    """Add what every window of x holds at the place its argmax points to; adjoint of max_pool_gradient."""
    return graph.add("max_pool_gather", [x, argmax], _geometry(window, strides, padding), name=name)[0]


def avg_pool(
    graph: Graph,
    x: Tensor,
    *,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int] = (0, 0, 0, 0),
    count_padding: bool = False,
    name: str | None = None,
) -> Tensor:
    """Add the mean of every window of x, (N, C, H, W) float.

    ``count_padding``: divide by the window's size; otherwise by the number of its places inside the image.
    """
    attributes = {**_geometry(window, strides, padding), "count_padding": count_padding}
    return graph.add("avg_pool", [x], attributes, name=name)[0]


def avg_pool_gradient(
    graph: Graph,
    dy: Tensor,
    *,
    input_shape: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int] = (0, 0, 0, 0),
    count_padding: bool = False,
    name: str | None = None,
) -> Tensor:
    """Add dx of ``input_shape`` with <avg_pool(x), dy> = <x, dx> for every x."""
    attributes = {
        **_geometry(window, strides, padding),
        "count_padding": count_padding,
        "input_shape": tuple(input_shape),
    }
    return graph.add("avg_pool_gradient", [dy], attributes, name=name)[0]


def _geometry(window: Sequence[int], strides: Sequence[int], padding: Sequence[int]) -> dict[str, Any]:
    return {"window": tuple(window), "strides": tuple(strides), "padding": tuple(padding)}


def _pair(node: Node) -> tuple[Tensor, Tensor]:
    return node[0], node[1]


def _pooled_shape(op: str, x: TensorSpec, attributes: Attributes) -> tuple[int, ...]:
    expect_dtype(op, x, FLOATS)
    expect_rank(op, x, 4, "x (N, C, H, W)")
    window, padding = attributes["window"], attributes["padding"]
    counts = window_counts(op, x, window, attributes["strides"], padding)
    inside = max(padding[:2]) < window[0] and max(padding[2:]) < window[1]
    expect(inside, op, f"padding smaller than the window {window} on every side", padding)
    return (*x.shape[:2], *counts)


def _expect_pooled(op: str, x: TensorSpec, pooled: TensorSpec, dtype: str, attributes: Attributes) -> None:
    expected = TensorSpec(_pooled_shape(op, x, attributes), dtype)
    expect(pooled == expected, op, f"{expected} for x {x}", pooled)


def _infer_max_pool(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    (x,) = specs
    shape = _pooled_shape("max_pool", x, attributes)
    return [TensorSpec(shape, x.dtype), TensorSpec(shape, "int32")]


def _infer_max_pool_gradient(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    op = "max_pool_gradient"
    dy, argmax = specs
    x = declared_spec(op, {"shape": attributes["input_shape"], "dtype": dy.dtype})
    _expect_pooled(op, x, dy, dy.dtype, attributes)
    _expect_pooled(op, x, argmax, "int32", attributes)
    return [x]


def _infer_max_pool_gather(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    x, argmax = specs
    _expect_pooled("max_pool_gather", x, argmax, "int32", attributes)
    return [TensorSpec(argmax.shape, x.dtype)]


def _infer_avg_pool(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    (x,) = specs
    return [TensorSpec(_pooled_shape("avg_pool", x, attributes), x.dtype)]


def _infer_avg_pool_gradient(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    op = "avg_pool_gradient"
    (dy,) = specs
    x = declared_spec(op, {"shape": attributes["input_shape"], "dtype": dy.dtype})
    _expect_pooled(op, x, dy, dy.dtype, attributes)
    return [x]


def _only(node: Node, names: Iterable[str]) -> dict[str, Any]:
    return {name: node.attributes[name] for name in names}


def _scatter(graph: Graph, node: Node, dy: Tensor, argmax: Tensor, x: Tensor) -> Tensor:
    attributes = {**_only(node, _WINDOW), "input_shape": graph.spec(x).shape}
    return graph.add("max_pool_gradient", [dy, argmax], attributes)[0]


def _max_pool_rule(graph: Graph, node: Node, totals: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    dy = totals[0]
    assert dy is not None, "the positions are integers, so a gradient arrives at y only"
    return [_scatter(graph, node, dy, node[1], node.inputs[0])]


def _max_pool_gradient_rule(graph: Graph, node: Node, ddx: Tensor) -> Sequence[Tensor | None]:
    return [graph.add("max_pool_gather", [ddx, node.inputs[1]], _only(node, _WINDOW))[0], None]


def _max_pool_gather_rule(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    x, argmax = node.inputs
    return [_scatter(graph, node, dy, argmax, x), None]


def _avg_pool_rule(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    attributes = {**_only(node, _AVERAGE), "input_shape": graph.spec(node.inputs[0]).shape}
    return [graph.add("avg_pool_gradient", [dy], attributes)[0]]


def _avg_pool_gradient_rule(graph: Graph, node: Node, ddx: Tensor) -> Sequence[Tensor | None]:
    return [graph.add("avg_pool", [ddx], _only(node, _AVERAGE))[0]]


def _window_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    return outputs[0].size * math.prod(attributes["window"])


_WINDOW = {"window": "ints", "strides": "ints", "padding": "ints"}
_AVERAGE = {**_WINDOW, "count_padding": "bool"}
_TO_INPUT = {"input_shape": "ints"}

register(OpDef("max_pool", _infer_max_pool, _max_pool_rule, 1, _WINDOW, _window_flops))
register(
    OpDef(
        "max_pool_gradient",
        _infer_max_pool_gradient,
        single_output(_max_pool_gradient_rule),
        arity=2,
        attributes={**_WINDOW, **_TO_INPUT},
        flops=input_flops(1),
    )
)
register(
    OpDef(
        "max_pool_gather",
        _infer_max_pool_gather,
        single_output(_max_pool_gather_rule),
        arity=2,
        attributes=_WINDOW,
    )
)
register(OpDef("avg_pool", _infer_avg_pool, single_output(_avg_pool_rule), 1, _AVERAGE, _window_flops))
register(
    OpDef(
        "avg_pool_gradient",
        _infer_avg_pool_gradient,
        single_output(_avg_pool_gradient_rule),
        arity=1,
        attributes={**_AVERAGE, **_TO_INPUT},
        flops=input_flops(1),
    )
)
