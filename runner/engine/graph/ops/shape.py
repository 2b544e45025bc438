"""Ops that rearrange, cut, join or pad tensors without arithmetic. Their gradient rules add ops of this kind."""

import math
from collections.abc import Sequence

from runner.engine.graph.node import Node
from runner.engine.graph.op import Attributes, Builder, OpDef, expect, no_flops, register
from runner.engine.graph.ops.common import canonical_axis, expect_axes, expect_same_dtype, single_output
from runner.engine.graph.ops.structural import fill
from runner.engine.graph.tensor import Tensor, TensorSpec


def reshape(graph: Builder, x: Tensor, shape: Sequence[int], *, name: str | None = None) -> Tensor:
    """Add a node that reshapes x to ``shape`` in row-major order; one extent may be -1 and is then inferred."""
    shape = tuple(shape)
    known = math.prod(extent for extent in shape if extent != -1)
    size = graph.spec(x).size
    if shape.count(-1) == 1 and known > 0 and size % known == 0:
        shape = tuple(size // known if extent == -1 else extent for extent in shape)
    return graph.add("reshape", [x], {"shape": shape}, name=name)[0]


def transpose(graph: Builder, x: Tensor, perm: Sequence[int], *, name: str | None = None) -> Tensor:
    """Add a node that permutes the axes of x: axis i of the output is axis perm[i] of x."""
    return graph.add("transpose", [x], {"perm": tuple(perm)}, name=name)[0]


def concat(graph: Builder, tensors: Sequence[Tensor], axis: int, *, name: str | None = None) -> Tensor:
    """Add a node that joins the tensors along ``axis``; all other extents must be equal."""
    rank = graph.spec(tensors[0]).rank if tensors else 0
    return graph.add("concat", tensors, {"axis": canonical_axis(axis, rank)}, name=name)[0]


def split(graph: Builder, x: Tensor, axis: int, sizes: Sequence[int], *, name: str | None = None) -> tuple[Tensor, ...]:
    """Add a node that cuts x along ``axis`` into consecutive parts, with extents ``sizes`` along this axis."""
    attributes = {"axis": canonical_axis(axis, graph.spec(x).rank), "sizes": tuple(sizes)}
    return graph.add("split", [x], attributes, name=name).tensors


def slice(  # noqa: A001 - the op's name
    graph: Builder, x: Tensor, begin: Sequence[int], size: Sequence[int], *, name: str | None = None
) -> Tensor:
    """Add a node for the block of x that starts at ``begin`` and has shape ``size``."""
    return graph.add("slice", [x], {"begin": tuple(begin), "size": tuple(size)}, name=name)[0]


def pad(graph: Builder, x: Tensor, low: Sequence[int], high: Sequence[int], *, name: str | None = None) -> Tensor:
    """Add a node that pads each axis i of x with ``low[i]`` zeros at its start and ``high[i]`` zeros at its end."""
    return graph.add("pad", [x], {"low": tuple(low), "high": tuple(high)}, name=name)[0]


def _infer_reshape(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    (x,) = specs
    shape = attributes["shape"]
    fits = all(extent >= 0 for extent in shape) and math.prod(shape) == x.size
    expect(fits, f"a shape for the {x.size} elements of {x}", shape)
    return [TensorSpec(shape, x.dtype)]


def _infer_transpose(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    (x,) = specs
    perm = attributes["perm"]
    expect(sorted(perm) == list(range(x.rank)), f"a permutation of the {x.rank} axes", perm)
    return [TensorSpec(tuple(x.shape[axis] for axis in perm), x.dtype)]


def _infer_concat(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    axis, first = attributes["axis"], specs[0]
    expect_same_dtype(specs)
    expect_axes([axis], first.rank)
    rests = {_with_extent(spec.shape, axis, 0) for spec in specs}
    expect(len(rests) == 1, f"shapes that differ only on axis {axis}", [spec.shape for spec in specs])
    joined = sum(spec.shape[axis] for spec in specs)
    return [TensorSpec(_with_extent(first.shape, axis, joined), first.dtype)]


def _infer_split(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    (x,) = specs
    axis, sizes = attributes["axis"], attributes["sizes"]
    expect_axes([axis], x.rank)
    fits = len(sizes) > 0 and min(sizes) >= 0 and sum(sizes) == x.shape[axis]
    expect(fits, f"sizes that add up to {x.shape[axis]}", sizes)
    return [TensorSpec(_with_extent(x.shape, axis, size), x.dtype) for size in sizes]


def _with_extent(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _infer_slice(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    (x,) = specs
    begin, size = attributes["begin"], attributes["size"]
    inside = len(begin) == len(size) == x.rank and all(
        b >= 0 and s >= 0 and b + s <= extent for b, s, extent in zip(begin, size, x.shape, strict=True)
    )
    expect(inside, f"a block inside {x}", f"begin {begin}, size {size}")
    return [TensorSpec(size, x.dtype)]


def _infer_pad(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    (x,) = specs
    low, high = attributes["low"], attributes["high"]
    fits = len(low) == len(high) == x.rank and min((*low, *high), default=0) >= 0
    expect(fits, f"two non-negative widths for each of the {x.rank} axes", f"low {low}, high {high}")
    widened = tuple(before + extent + after for before, extent, after in zip(low, x.shape, high, strict=True))
    return [TensorSpec(widened, x.dtype)]


@single_output
def _transpose_gradient(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    perm = node.attributes["perm"]
    inverse = sorted(range(len(perm)), key=lambda axis: perm[axis])
    return [transpose(graph, dy, inverse)]


@single_output
def _concat_gradient(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    axis = node.attributes["axis"]
    return split(graph, dy, axis, [graph.spec(tensor).shape[axis] for tensor in node.inputs])


def _split_gradient(graph: Builder, node: Node, totals: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    parts = [
        fill(graph, 0.0, spec.shape, spec.dtype) if total is None else total
        for spec, total in zip(node.outputs, totals, strict=True)
    ]
    return [concat(graph, parts, node.attributes["axis"])]


@single_output
def _slice_gradient(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    begin, size = node.attributes["begin"], node.attributes["size"]
    extents = graph.spec(node.inputs[0]).shape
    after = [extent - b - s for extent, b, s in zip(extents, begin, size, strict=True)]
    return [pad(graph, dy, begin, after)]


_BLOCK = {"begin": "ints", "size": "ints"}
_WIDTHS = {"low": "ints", "high": "ints"}

_RESHAPE_GRADIENT = single_output(lambda graph, node, dy: [reshape(graph, dy, graph.spec(node.inputs[0]).shape)])
_PAD_GRADIENT = single_output(
    lambda graph, node, dy: [slice(graph, dy, node.attributes["low"], graph.spec(node.inputs[0]).shape)]
)

register(
    OpDef("reshape", _infer_reshape, _RESHAPE_GRADIENT, 1, {"shape": "ints"}, no_flops),
    OpDef("transpose", _infer_transpose, _transpose_gradient, 1, {"perm": "ints"}, no_flops),
    OpDef("concat", _infer_concat, _concat_gradient, None, {"axis": "int"}, no_flops),
    OpDef("split", _infer_split, _split_gradient, 1, {"axis": "int", "sizes": "ints"}, no_flops),
    OpDef("slice", _infer_slice, _slice_gradient, 1, _BLOCK, no_flops),
    OpDef("pad", _infer_pad, _PAD_GRADIENT, 1, _WIDTHS, no_flops),
)
