"""Rearrangements: strided copies, in C order or channels last."""

from collections.abc import Sequence
from itertools import accumulate

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
from runner.kernels.gpu import copies
from runner.kernels.gpu.calls import Bind, StreamCall, in_order, own_kernels
from runner.kernels.gpu.layouts import CHANNELS_LAST, channels_last, offered_layout, strides, strides_of
from runner.kernels.gpu.runtime import Runtime
from runner.kernels.memory import numpy_dtype


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels of rearrangements."""
    table: dict[str, tuple[Arrange, Bind]] = {
        "reshape": (_arrange_reshape, _reshape),
        "transpose": (_arrange_transpose, _transpose),
        "concat": (_arrange_alike, _concat),
        "split": (_arrange_alike, _split),
        "slice": (_arrange_alike, _slice),
        "pad": (_arrange_alike, _pad),
    }
    return own_kernels(runtime, table)


def _arrange_alike(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    """Arrange all tensors in the same layout; a copied block has at most their rank."""
    if len(inputs[0].shape) > copies.MOST_AXES:
        return None
    last = offered_layout(inputs[0], offered).tag == CHANNELS_LAST
    lie = channels_last if last else plain
    return Arrangement(tuple(map(lie, inputs)), tuple(map(lie, outputs)))


def _concat(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (y,) = buffers.outputs
    starts = _starts([part.spec.shape[attributes["axis"]] for part in buffers.inputs])
    far = strides_of(y)
    return in_order(
        [
            _copied(runtime, part.spec, part, strides_of(part), 0, y, far, start * far[attributes["axis"]])
            for part, start in zip(buffers.inputs, starts, strict=True)
        ]
    )


def _split(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (x,) = buffers.inputs
    near = strides_of(x)
    return in_order(
        [
            _copied(runtime, part.spec, x, near, start * near[attributes["axis"]], part, strides_of(part), 0)
            for part, start in zip(buffers.outputs, _starts(attributes["sizes"]), strict=True)
        ]
    )


def _slice(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (x,), (y,) = buffers.inputs, buffers.outputs
    near = strides_of(x)
    return _copied(runtime, y.spec, x, near, _place(attributes["begin"], near), y, strides_of(y), 0)


def _pad(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (x,), (y,) = buffers.inputs, buffers.outputs
    far = strides_of(y)
    zeros = copies.clear(runtime, y.spec.nbytes, y.address)
    return in_order([zeros, _copied(runtime, x.spec, x, strides_of(x), 0, y, far, _place(attributes["low"], far))])


def _arrange_transpose(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    (x,), (y,) = inputs, outputs
    layout = offered_layout(x, offered)
    near = strides(x.shape, layout)
    fits = copies.copyable(zip(y.shape, [near[a] for a in attributes["perm"]], strides(y.shape, plain(y)), strict=True))
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
    """Return the copy of a block from element ``first`` of the source to element ``start`` of the target."""
    itemsize = numpy_dtype(block.dtype).itemsize
    axes = zip(block.shape, near, far, strict=True)
    return copies.copy(runtime, itemsize, axes, source.address + first * itemsize, target.address + start * itemsize)


def _starts(sizes: Sequence[int]) -> list[int]:
    """Return the begin of each of consecutive parts."""
    return list(accumulate([0, *sizes[:-1]]))


def _place(position: Sequence[int], distances: Sequence[int]) -> int:
    """Return the offset of a position."""
    return sum(at * distance for at, distance in zip(position, distances, strict=True))
