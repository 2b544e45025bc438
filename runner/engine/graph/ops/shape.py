"""Ops that rearrange, cut, join or pad tensors. The gradient rules add only ops of this module and ``fill``."""

import math
from collections.abc import Sequence

from runner.engine.graph.node import Node
from runner.engine.graph.op import Builder, OpDef, Specs, expect, no_flops, register
from runner.engine.graph.ops.common import canonical_axis, declared_spec, expect_axes, expect_same_dtype, single_output
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
    graph: Builder,
    x: Tensor,
    begin: Sequence[int],
    size: Sequence[int],
    steps: Sequence[int] | None = None,
    *,
    name: str | None = None,
) -> Tensor:
    """Add a node for the elements x[begin + steps * i] for all i below ``size``, the shape of the output.

    begin, size, steps: one number per axis. Steps may be negative, but not 0. By default, all steps are 1, and the
    output is the block that starts at ``begin``.
    """
    attributes = {"begin": tuple(begin), "size": tuple(size), "steps": _unit(size) if steps is None else tuple(steps)}
    return graph.add("slice", [x], attributes, name=name)[0]


def slice_gradient(
    graph: Builder, dy: Tensor, *, input_shape: Sequence[int], begin: Sequence[int], steps: Sequence[int]
) -> Tensor:
    """Add a node for dx of ``input_shape`` with <slice(x), dy> = <x, dx> for all x: dy between zeros."""
    attributes = {"input_shape": tuple(input_shape), "begin": tuple(begin), "steps": tuple(steps)}
    return graph.add("slice_gradient", [dy], attributes)[0]


def pad(graph: Builder, x: Tensor, low: Sequence[int], high: Sequence[int], *, name: str | None = None) -> Tensor:
    """Add a node that pads each axis i of x with ``low[i]`` zeros at its start and ``high[i]`` zeros at its end."""
    return graph.add("pad", [x], {"low": tuple(low), "high": tuple(high)}, name=name)[0]


def _infer_reshape(x: TensorSpec, *, shape: tuple[int, ...]) -> Specs:
    fits = all(extent >= 0 for extent in shape) and math.prod(shape) == x.size
    expect(fits, f"a shape for the {x.size} elements of {x}", shape)
    return [TensorSpec(shape, x.dtype)]


def _infer_transpose(x: TensorSpec, *, perm: Sequence[int]) -> Specs:
    expect(sorted(perm) == list(range(x.rank)), f"a permutation of the {x.rank} axes", perm)
    return [TensorSpec(tuple(x.shape[axis] for axis in perm), x.dtype)]


def _infer_concat(first: TensorSpec, *others: TensorSpec, axis: int) -> Specs:
    specs = [first, *others]
    expect_same_dtype(specs)
    expect_axes([axis], first.rank)
    rests = {(spec.rank, _with_extent(spec.shape, axis, 0)) for spec in specs}
    expect(len(rests) == 1, f"shapes that differ only on axis {axis}", [spec.shape for spec in specs])
    joined = sum(spec.shape[axis] for spec in specs)
    return [TensorSpec(_with_extent(first.shape, axis, joined), first.dtype)]


def _infer_split(x: TensorSpec, *, axis: int, sizes: Sequence[int]) -> Specs:
    expect_axes([axis], x.rank)
    fits = len(sizes) > 0 and min(sizes) >= 0 and sum(sizes) == x.shape[axis]
    expect(fits, f"sizes that add up to {x.shape[axis]}", sizes)
    return [TensorSpec(_with_extent(x.shape, axis, size), x.dtype) for size in sizes]


def _unit(axes: Sequence[int]) -> tuple[int, ...]:
    """Return a step of 1 for each axis."""
    return (1,) * len(axes)


def _with_extent(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _infer_slice(x: TensorSpec, *, begin: Sequence[int], size: tuple[int, ...], steps: Sequence[int]) -> Specs:
    _expect_inside(x, begin, size, steps)
    return [TensorSpec(size, x.dtype)]


def _infer_slice_gradient(
    dy: TensorSpec, *, input_shape: tuple[int, ...], begin: Sequence[int], steps: Sequence[int]
) -> Specs:
    x = declared_spec(input_shape, dy.dtype)
    _expect_inside(x, begin, dy.shape, steps)
    return [x]


def _expect_inside(x: TensorSpec, begin: Sequence[int], size: Sequence[int], steps: Sequence[int]) -> None:
    """Require one begin, size and step for each axis of x, no step of 0, and only positions inside x."""
    inside = len(begin) == len(size) == len(steps) == x.rank and all(
        step != 0 and count >= 0 and 0 <= first <= extent and (count == 0 or 0 <= first + (count - 1) * step < extent)
        for first, count, step, extent in zip(begin, size, steps, x.shape, strict=True)
    )
    expect(inside, f"a block inside {x}", f"begin {begin}, size {size}, steps {steps}")


def _infer_pad(x: TensorSpec, *, low: Sequence[int], high: Sequence[int]) -> Specs:
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
    begin, size, steps = (node.attributes[name] for name in ("begin", "size", "steps"))
    extents = graph.spec(node.inputs[0]).shape
    if steps != _unit(size):
        return [slice_gradient(graph, dy, input_shape=extents, begin=begin, steps=steps)]
    after = [extent - b - s for extent, b, s in zip(extents, begin, size, strict=True)]
    return [pad(graph, dy, begin, after)]


@single_output
def _slice_gradient_gradient(graph: Builder, node: Node, ddx: Tensor) -> Sequence[Tensor | None]:
    begin, steps = node.attributes["begin"], node.attributes["steps"]
    return [slice(graph, ddx, begin, graph.spec(node.inputs[0]).shape, steps)]


_PLACES = {"begin": "ints", "steps": "ints"}
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
    OpDef("slice", _infer_slice, _slice_gradient, 1, {**_PLACES, "size": "ints"}, no_flops),
    OpDef(
        "slice_gradient",
        _infer_slice_gradient,
        _slice_gradient_gradient,
        arity=1,
        attributes={**_PLACES, "input_shape": "ints"},
        flops=no_flops,
    ),
    OpDef("pad", _infer_pad, _PAD_GRADIENT, 1, _WIDTHS, no_flops),
)
