"""Ops that rearrange elements without computing: their gradients are each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from runner.engine.graph import Graph, Node
from runner.engine.op import Attributes, OpDef, expect, no_flops, register
from runner.engine.ops.common import canonical_axis, expect_axes, expect_same_dtype, single_output, zeros_like
from runner.engine.tensor import Tensor, TensorSpec


def reshape(graph: Graph, x: Tensor, shape: Sequence[int], *, name: str | None = None) -> Tensor:
    """Add the elements of x, in row-major order, in another shape; one extent may be -1: whatever is left."""
    shape = tuple(shape)
    if shape.count(-1) == 1:
        known = math.prod(extent for extent in shape if extent != -1)
        size = graph.spec(x).size
        expect(known > 0 and size % known == 0, "reshape", f"a shape for {size} elements", shape)
        shape = tuple(size // known if extent == -1 else extent for extent in shape)
    return graph.add("reshape", [x], {"shape": shape}, name=name)[0]


def transpose(graph: Graph, x: Tensor, perm: Sequence[int], *, name: str | None = None) -> Tensor:
    """Add x with permuted axes: axis i of the output is axis perm[i] of x."""
    return graph.add("transpose", [x], {"perm": tuple(perm)}, name=name)[0]


def concat(graph: Graph, tensors: Sequence[Tensor], axis: int, *, name: str | None = None) -> Tensor:
    """Add the tensors joined along ``axis``; all other extents agree."""
    rank = graph.spec(tensors[0]).rank if tensors else 0
    return graph.add("concat", tensors, {"axis": canonical_axis(axis, rank)}, name=name)[0]


def split(graph: Graph, x: Tensor, axis: int, sizes: Sequence[int], *, name: str | None = None) -> tuple[Tensor, ...]:
    """Add one tensor per entry of ``sizes``: x cut along ``axis`` into consecutive parts of these extents."""
    attributes = {"axis": canonical_axis(axis, graph.spec(x).rank), "sizes": tuple(sizes)}
    return graph.add("split", [x], attributes, name=name).tensors


def slice(  # noqa: A001 - the op's name
    graph: Graph, x: Tensor, begin: Sequence[int], size: Sequence[int], *, name: str | None = None
) -> Tensor:
    """Add the block of x that starts at ``begin`` and has shape ``size``."""
    return graph.add("slice", [x], {"begin": tuple(begin), "size": tuple(size)}, name=name)[0]


def pad(graph: Graph, x: Tensor, low: Sequence[int], high: Sequence[int], *, name: str | None = None) -> Tensor:
    """Add x with ``low[i]`` zeros before and ``high[i]`` zeros after axis i."""
    return graph.add("pad", [x], {"low": tuple(low), "high": tuple(high)}, name=name)[0]


def _infer_reshape(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    (x,) = specs
    shape = attributes["shape"]
    fits = all(extent >= 0 for extent in shape) and math.prod(shape) == x.size
    expect(fits, "reshape", f"a shape for the {x.size} elements of {x}", shape)
    return [TensorSpec(shape, x.dtype)]


def _infer_transpose(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    (x,) = specs
    perm = attributes["perm"]
    expect(sorted(perm) == list(range(x.rank)), "transpose", f"a permutation of the {x.rank} axes", perm)
    return [TensorSpec(tuple(x.shape[axis] for axis in perm), x.dtype)]


def _infer_concat(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    axis, first = attributes["axis"], specs[0]
    expect_same_dtype("concat", specs)
    expect_axes("concat", [axis], first.rank)
    rests = {_with_extent(spec.shape, axis, 0) for spec in specs}
    expect(len(rests) == 1, "concat", f"shapes that agree off axis {axis}", [spec.shape for spec in specs])
    joined = sum(spec.shape[axis] for spec in specs)
    return [TensorSpec(_with_extent(first.shape, axis, joined), first.dtype)]


def _infer_split(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    (x,) = specs
    axis, sizes = attributes["axis"], attributes["sizes"]
    expect_axes("split", [axis], x.rank)
    fits = len(sizes) > 0 and min(sizes) >= 0 and sum(sizes) == x.shape[axis]
    expect(fits, "split", f"sizes that add up to {x.shape[axis]}", sizes)
    return [TensorSpec(_with_extent(x.shape, axis, size), x.dtype) for size in sizes]


def _with_extent(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _infer_slice(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    (x,) = specs
    begin, size = attributes["begin"], attributes["size"]
    inside = len(begin) == len(size) == x.rank and all(
        b >= 0 and s >= 0 and b + s <= extent for b, s, extent in zip(begin, size, x.shape, strict=True)
    )
    expect(inside, "slice", f"a block inside {x}", f"begin {begin}, size {size}")
    return [TensorSpec(size, x.dtype)]


def _infer_pad(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    (x,) = specs
    low, high = attributes["low"], attributes["high"]
    fits = len(low) == len(high) == x.rank and min((*low, *high), default=0) >= 0
    expect(fits, "pad", f"two non-negative widths for each of the {x.rank} axes", f"low {low}, high {high}")
    widened = tuple(before + extent + after for before, extent, after in zip(low, x.shape, high, strict=True))
    return [TensorSpec(widened, x.dtype)]


def _reshape_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [reshape(graph, dy, graph.spec(node.inputs[0]).shape)]


def _transpose_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    perm = node.attributes["perm"]
    inverse = sorted(range(len(perm)), key=lambda axis: perm[axis])
    return [transpose(graph, dy, inverse)]


def _concat_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    axis = node.attributes["axis"]
    return split(graph, dy, axis, [graph.spec(tensor).shape[axis] for tensor in node.inputs])


def _split_gradient(graph: Graph, node: Node, totals: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    parts = [
        zeros_like(graph, part) if total is None else total for part, total in zip(node.tensors, totals, strict=True)
    ]
    return [concat(graph, parts, node.attributes["axis"])]


def _slice_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    begin, size = node.attributes["begin"], node.attributes["size"]
    extents = graph.spec(node.inputs[0]).shape
    after = [extent - b - s for extent, b, s in zip(extents, begin, size, strict=True)]
    return [pad(graph, dy, begin, after)]


def _pad_gradient(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [slice(graph, dy, node.attributes["low"], graph.spec(node.inputs[0]).shape)]


_BLOCK = {"begin": "ints", "size": "ints"}
_WIDTHS = {"low": "ints", "high": "ints"}

register(OpDef("reshape", _infer_reshape, single_output(_reshape_gradient), 1, {"shape": "ints"}, no_flops))
register(OpDef("transpose", _infer_transpose, single_output(_transpose_gradient), 1, {"perm": "ints"}, no_flops))
register(OpDef("concat", _infer_concat, single_output(_concat_gradient), None, {"axis": "int"}, no_flops))
register(OpDef("split", _infer_split, _split_gradient, 1, {"axis": "int", "sizes": "ints"}, no_flops))
register(OpDef("slice", _infer_slice, single_output(_slice_gradient), 1, _BLOCK, no_flops))
register(OpDef("pad", _infer_pad, single_output(_pad_gradient), 1, _WIDTHS, no_flops))
