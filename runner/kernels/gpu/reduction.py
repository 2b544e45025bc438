"""Reductions over any axes, of tensors of any strides, and broadcasting.

Long reductions are cut into slices, so that a reduction to few outputs also fills the GPU. A second launch reduces
the results of the slices. The order of additions depends only on the shape and the layout.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from runner.kernels.contract import Arrange, Arrangement, Attributes, Buffers, Kernel, Layout, Offers, Specs, plain
from runner.kernels.elementwise import computed_in
from runner.kernels.gpu import shape
from runner.kernels.gpu.layouts import Axis, arguments, broadcast_strides, merged, offered_layout, strides, strides_of
from runner.kernels.gpu.runtime import (
    THREADS,
    Argument,
    Bind,
    Runtime,
    StreamCall,
    in_order,
    launch,
    own_kernels,
    power_of_two,
)
from runner.kernels.gpu.source import text
from runner.kernels.memory import address_of, numpy_dtype

RANK = 4
"""The maximum number of kept axes, and of reduced axes, after axes are merged."""

ENOUGH_BLOCKS = 512
"""The number of blocks above which more slices bring no speedup."""

LEAST_PER_THREAD, MOST_PER_THREAD = 8, 256
"""Limits of the elements per thread: fewer elements bring no speedup; with more, float32 sums lose precision."""

MOST_SLICES = 65535
"""CUDA's maximum for the second extent of a grid."""


@dataclass(frozen=True)
class Reduction:
    """The reduction of a tensor and its division among blocks.

    kept: axes (extent, stride in the output, stride in the input). reduced: axes (extent, stride in the input).
    outputs: number of outputs. count: input elements per output. across: outputs per block. length: elements per slice.
    """

    kept: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    outputs: int
    count: int
    across: int
    length: int

    @property
    def slices(self) -> int:
        """The number of slices, each with a separate result for every output."""
        return max(1, -(-self.count // self.length))

    @property
    def blocks(self) -> int:
        """Blocks per slice."""
        return max(1, -(-self.outputs // self.across))


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels of reductions and of broadcast_to."""
    table: dict[str, tuple[Arrange, Bind]] = {
        op: (_arrange, partial(_reduce, op)) for op in ("reduce_sum", "sum_of_squares", "reduce_mean", "reduce_max")
    }
    table |= {"argmax": (_arrange_argmax, _argmax), "broadcast_to": (_arrange_broadcast, _broadcast)}
    return own_kernels(runtime, table)


def reduced_shape(shape: Sequence[int], near: Sequence[int], axes: Sequence[int]) -> Reduction:
    """Return the reduction over ``axes`` of a tensor of ``shape`` with strides ``near``; the result is in C order."""
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    far = strides([shape[axis] for axis in kept], Layout("", 0))
    keeping = merged((shape[axis], there, near[axis]) for axis, there in zip(kept, far, strict=True))
    reducing = merged((shape[axis], near[axis]) for axis in axes)
    outputs, count = math.prod(shape[axis] for axis in kept), math.prod(shape[axis] for axis in axes)
    across = _across(keeping, reducing, outputs, count)
    return Reduction(tuple(keeping), tuple(reducing), outputs, count, across, _length(outputs, count, across))


def scratch_bytes(reduction: Reduction, dtype: str) -> int:
    """Return the bytes of scratch memory for the results of the slices. dtype: dtype of the reduced tensor."""
    if reduction.slices == 1:
        return 0
    return reduction.slices * reduction.outputs * numpy_dtype(computed_in(dtype)).itemsize


def reduce(
    runtime: Runtime, op: str, reduction: Reduction, source: tuple[str, int], target: tuple[str, int], scratch: int
) -> StreamCall:
    """Return the call of a reduction. source, target: (dtype, address). scratch: address for results of slices."""
    if reduction.slices == 1:
        return _launch(runtime, op, reduction, reduction.count, source, target)
    partial = (computed_in(source[0]), scratch)
    first, second = {"reduce_mean": ("reduce_sum", op), "sum_of_squares": (op, "reduce_sum")}.get(op, (op, op))
    of_slices = _launch(runtime, first, reduction, reduction.count, source, partial)
    return in_order([of_slices, _launch(runtime, second, _of_slices(reduction), reduction.count, partial, target)])


def _reduce(op: str, runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (x,), (y,) = buffers.inputs, buffers.outputs
    reduction = reduced_shape(x.spec.shape, strides_of(x), attributes["axes"])
    source, target = (x.spec.dtype, x.address), (y.spec.dtype, y.address)
    return reduce(runtime, op, reduction, source, target, address_of(buffers.scratch))


def _arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    (x,), (y,) = inputs, outputs
    layout = offered_layout(x, offered)
    reduction = reduced_shape(x.shape, strides(x.shape, layout), attributes["axes"])
    if max(len(reduction.kept), len(reduction.reduced)) > RANK:
        return None
    return Arrangement((layout,), (plain(y),), scratch_bytes(reduction, x.dtype))


def _arrange_argmax(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    (x,), (y,) = inputs, outputs
    layout = offered_layout(x, offered)
    reduction = reduced_shape(x.shape, strides(x.shape, layout), (attributes["axis"],))
    return Arrangement((layout,), (plain(y),)) if len(reduction.kept) <= RANK else None


def _argmax(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (x,), (y,), axis = buffers.inputs, buffers.outputs, attributes["axis"]
    near = strides_of(x)
    reduction = reduced_shape(x.spec.shape, near, (axis,))
    function = runtime.function(_source(x.spec.dtype, computed_in(x.spec.dtype)), "argmax")
    fixed: list[Argument] = [
        *(x, y, np.int64(reduction.outputs), np.int64(reduction.count)),
        *(np.int64(near[axis]), np.int32(reduction.across)),
        *arguments(reduction.kept, RANK, 2),
    ]
    return launch(function, reduction.blocks, fixed)


def _arrange_broadcast(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    (x,), (y,) = inputs, outputs
    layout = offered_layout(x, offered)
    out = offered_layout(y, offered) if len(x.shape) == len(y.shape) else plain(y)
    block = zip(y.shape, broadcast_strides(x.shape, layout, len(y.shape)), strides(y.shape, out), strict=True)
    return Arrangement((layout,), (out,)) if shape.copyable(block) else None


def _broadcast(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (x,), (y,) = buffers.inputs, buffers.outputs
    block = zip(y.spec.shape, broadcast_strides(x.spec.shape, x.layout, len(y.spec.shape)), strides_of(y), strict=True)
    return shape.copy(runtime, numpy_dtype(x.spec.dtype).itemsize, block, x.address, y.address)


def _across(kept: Sequence[Axis], reduced: Sequence[Axis], outputs: int, count: int) -> int:
    """Return the number of outputs per block, chosen so that adjacent threads read adjacent memory and few are idle."""
    side_by_side = bool(kept) and (not reduced or kept[-1][-1] < reduced[-1][-1])
    depth = min(power_of_two(count), 8 if side_by_side else THREADS)
    return min(THREADS // depth, power_of_two(outputs), THREADS)


def _length(outputs: int, count: int, across: int) -> int:
    """Return the elements per slice."""
    depth, blocks = THREADS // across, max(1, -(-outputs // across))
    useful = min(-(-count // (depth * LEAST_PER_THREAD)), -(-ENOUGH_BLOCKS // blocks))
    needed = -(-count // (depth * MOST_PER_THREAD))
    return max(1, -(-count // min(max(useful, needed, 1), MOST_SLICES)))


def _of_slices(reduction: Reduction) -> Reduction:
    """Return the second reduction, over the results of the slices, which are stored one after the other."""
    found = reduced_shape((reduction.slices, reduction.outputs), (reduction.outputs, 1), (0,))
    return replace(found, length=found.count)


def _launch(
    runtime: Runtime, op: str, reduction: Reduction, of: int, source: tuple[str, int], target: tuple[str, int]
) -> StreamCall:
    fixed: list[Argument] = [
        *(np.uintp(source[1]), np.uintp(target[1]), np.int64(reduction.outputs), np.int64(reduction.count)),
        *(np.int64(reduction.length), np.int64(reduction.outputs), np.int32(reduction.across)),
        *arguments(reduction.kept, RANK, 2),
        *arguments(reduction.reduced, RANK, 1),
    ]
    if op == "reduce_mean":
        fixed.append(np.int64(of))
    function = runtime.function(_source(source[0], target[0]), op)
    return launch(function, (reduction.blocks, reduction.slices, 1), fixed)


def _source(dtype: str, result: str) -> str:
    return text("reduction", T=dtype, A=computed_in(dtype), R=result)
