"""Copies between strided blocks of GPU memory, and rearrangements that consist of such copies, in any layout."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from runner.kernels.contract import (
    Arrange,
    Arrangement,
    Attributes,
    Buffers,
    Kernel,
    Offers,
    Operand,
    Spec,
    Specs,
    plain,
)
from runner.kernels.gpu.layouts import Axis, arguments, arrange_alike, merged, offered_layout, strides, strides_of
from runner.kernels.gpu.runtime import Bind, Runtime, Stream, StreamCall, blocks_for, in_order, launch, own_kernels
from runner.kernels.gpu.source import text
from runner.kernels.memory import numpy_dtype

MOST_AXES = 6
"""The maximum rank of a copied block after merging axes."""

UNITS = {1: "uint8", 2: "bfloat16", 4: "uint32", 8: "int64"}
"""Bytes of a copied unit -> a dtype of that size."""


def copyable(axes: Iterable[Axis]) -> bool:
    """Return whether :func:`copy` supports a block with these axes."""
    return len(merged(axes)) <= MOST_AXES


def copy(runtime: Runtime, itemsize: int, axes: Iterable[Axis], source: int, target: int) -> StreamCall:
    """Return the call that copies a block of elements of ``itemsize`` bytes between two addresses.

    axes: (extent, stride in the source, stride in the target). A copy of a block to itself does nothing.
    """
    block = merged(axes)
    count = math.prod(axis[0] for axis in block)
    same = all(near == far for _, near, far in block)
    if not count or (same and source == target):
        return StreamCall(lambda stream: None)
    if same and len(block) <= 1 and all(near == 1 for _, near, _ in block):
        return _straight(runtime, source, target, count * itemsize)
    unit, block = in_units(block, itemsize, (source, target))
    count = math.prod(axis[0] for axis in block)
    function = runtime.function(text("copies", T=UNITS[unit]), "copy_block")
    fixed = [np.uintp(source), np.uintp(target), np.int64(count), *arguments(block, MOST_AXES, 2)]
    return launch(function, blocks_for(runtime, count), fixed)


def clear(runtime: Runtime, nbytes: int, target: int) -> StreamCall:
    """Return the call that sets ``nbytes`` bytes at an address to 0."""
    unit, ((count, _),) = in_units([(nbytes, 1)], 1, (target,))
    function = runtime.function(text("copies", T=UNITS[unit]), "clear")
    return launch(function, blocks_for(runtime, count), [np.uintp(target), np.int64(count)])


def in_units(block: Sequence[Axis], itemsize: int, addresses: Sequence[int]) -> tuple[int, list[Axis]]:
    """Return the largest unit, in bytes, in which a merged block can be copied, and the block's axes in such units."""
    if not block or any(near != 1 for near in block[-1][1:]):
        return itemsize, list(block)
    *outer, (extent, *_) = block
    marks = [extent, *(distance for axis in outer for distance in axis[1:])]
    common = math.gcd(*(mark * itemsize for mark in marks), *addresses)
    unit = max(size for size in UNITS if size == itemsize or (size > itemsize and common % size == 0))
    ratio = unit // itemsize
    ones = (1,) * (len(block[-1]) - 1)
    return unit, [*((e, *(d // ratio for d in far)) for e, *far in outer), (extent // ratio, *ones)]


def _straight(runtime: Runtime, source: int, target: int, nbytes: int) -> StreamCall:
    def enqueue(stream: Stream) -> None:
        runtime.copy(target, source, nbytes, stream)

    return StreamCall(enqueue)


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels of ops that rearrange elements."""
    table: dict[str, tuple[Arrange, Bind]] = {
        "reshape": (_arrange_reshape, _reshape),
        "transpose": (_arrange_transpose, _transpose),
        "concat": (_arrange_alike, _concat),
        "split": (_arrange_alike, _split),
        "slice": (_arrange_alike, _slice),
        "slice_gradient": (_arrange_alike, _slice_gradient),
        "pad": (_arrange_alike, _pad),
    }
    return own_kernels(runtime, table)


def _arrange_alike(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    """Arrange all tensors in the same layout, or return None for more than ``MOST_AXES`` axes."""
    return arrange_alike(attributes, inputs, outputs, offered) if len(inputs[0].shape) <= MOST_AXES else None


def _concat(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    return _divided(runtime, attributes["axis"], buffers.outputs[0], buffers.inputs, into=True)


def _split(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    return _divided(runtime, attributes["axis"], buffers.inputs[0], buffers.outputs, into=False)


def _divided(runtime: Runtime, axis: int, whole: Operand, parts: Sequence[Operand], *, into: bool) -> StreamCall:
    """Return the copies between a tensor and its parts along an axis. into: whether the copies write the tensor."""
    strides_of_whole, start, calls = strides_of(whole), 0, []
    for part in parts:
        inside, alone = (whole, strides_of_whole, start * strides_of_whole[axis]), (part, strides_of(part), 0)
        calls.append(_copied(runtime, part.spec, *((*alone, *inside) if into else (*inside, *alone))))
        start += part.spec.shape[axis]
    return in_order(calls)


def _slice(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (x,), (y,) = buffers.inputs, buffers.outputs
    near = strides_of(x)
    first, apart = _offset(attributes["begin"], near), _products(attributes["steps"], near)
    return _copied(runtime, y.spec, x, apart, first, y, strides_of(y), 0)


def _slice_gradient(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (dy,), (dx,) = buffers.inputs, buffers.outputs
    far = strides_of(dx)
    zeros, apart = clear(runtime, dx.spec.nbytes, dx.address), _products(attributes["steps"], far)
    copied = _copied(runtime, dy.spec, dy, strides_of(dy), 0, dx, apart, _offset(attributes["begin"], far))
    return in_order([zeros, copied])


def _pad(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (x,), (y,) = buffers.inputs, buffers.outputs
    far = strides_of(y)
    zeros = clear(runtime, y.spec.nbytes, y.address)
    return in_order([zeros, _copied(runtime, x.spec, x, strides_of(x), 0, y, far, _offset(attributes["low"], far))])


def _arrange_transpose(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    (x,), (y,) = inputs, outputs
    layout = offered_layout(x, offered)
    near = strides(x.shape, layout)
    fits = copyable(zip(y.shape, [near[a] for a in attributes["perm"]], strides(y.shape, plain(y)), strict=True))
    return Arrangement((layout,), (plain(y),)) if fits else None


def _transpose(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (x,), (y,) = buffers.inputs, buffers.outputs
    near = strides_of(x)
    turned = [near[axis] for axis in attributes["perm"]]
    return _copied(runtime, y.spec, x, turned, 0, y, strides_of(y), 0)


def _arrange_reshape(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement:
    (x,), (y,) = inputs, outputs
    layout = offered_layout(x, offered)
    axes = zip(x.shape, strides(x.shape, layout), strides(x.shape, plain(x)), strict=True)
    stays = all(near == far for extent, near, far in axes if extent != 1)
    return Arrangement((layout,), (plain(y),), in_place=((0, 0),) if stays else ())


def _reshape(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (x,), (y,) = buffers.inputs, buffers.outputs
    return _copied(runtime, x.spec, x, strides_of(x), 0, y, strides(x.spec.shape, plain(x.spec)), 0)


def _copied(
    runtime: Runtime,
    block: Spec,
    source: Operand,
    near: Sequence[int],
    first: int,
    target: Operand,
    far: Sequence[int],
    start: int,
) -> StreamCall:
    """Return the call that copies a block from element ``first`` of the source to element ``start`` of the target."""
    itemsize = numpy_dtype(block.dtype).itemsize
    axes = zip(block.shape, near, far, strict=True)
    return copy(runtime, itemsize, axes, source.address + first * itemsize, target.address + start * itemsize)


def _offset(position: Sequence[int], strides_of_axes: Sequence[int]) -> int:
    """Return the offset of a position, in elements."""
    return sum(_products(position, strides_of_axes))


def _products(numbers: Sequence[int], strides_of_axes: Sequence[int]) -> list[int]:
    return [number * stride for number, stride in zip(numbers, strides_of_axes, strict=True)]
