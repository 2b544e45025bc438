"""Kernels of element-wise ops: one pass over memory, in loops over broadcast tensors with as few axes as possible."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import numpy as np

from runner.kernels.contract import FLOATS, Arrangement, Attributes, Buffers, Kernel, Layout, Offers, Spec, Specs, plain
from runner.kernels.gpu.element_loops import AXES, Elements, batch, flat, strided
from runner.kernels.gpu.layouts import (
    CHANNELS_LAST,
    Axis,
    broadcast_strides,
    channels_last,
    merged,
    offered_layout,
    strides,
)
from runner.kernels.gpu.runtime import LIBRARY, Argument, Runtime, StreamCall, blocks_for, launch
from runner.kernels.memory import numpy_dtype


@dataclass(frozen=True)
class Broadcast:
    """The nested loops over a result, the innermost first.

    count: number of elements of the result. axes: extent, then the stride in each input, 0 if the input is broadcast.
    """

    count: int
    axes: tuple[Axis, ...]

    @property
    def wide(self) -> tuple[bool, ...] | None:
        """For each input, True if it has the result's strides, False if it is a scalar. None if an input is neither."""
        if len(self.axes) != 1 or not set(self.axes[0][1:]) <= {0, 1}:
            return None
        return tuple(stride == 1 for stride in self.axes[0][1:])


def broadcast(inputs: Sequence[tuple[Spec, Layout]], result: tuple[Spec, Layout]) -> Broadcast:
    """Return the loops over ``result``, which has no gaps, for inputs that broadcast to its shape."""
    shape = result[0].shape
    count = math.prod(shape)
    if count <= 1:
        # An input without elements is not a scalar.
        alike = [int(spec.shape == shape or not math.prod(spec.shape)) for spec, _ in inputs]
        return Broadcast(count, ((count, *alike),))
    along = [broadcast_strides(spec.shape, layout, len(shape)) for spec, layout in inputs]
    axes = merged(zip(shape, *along, strides(shape, result[1]), strict=True))
    return Broadcast(count, tuple(axis[:-1] for axis in reversed(axes)))


_SMALL = 1 << 31

ElementsOf = Callable[[Attributes, Sequence[Spec], Sequence[Spec]], Elements]
"""(attributes, input specs, output specs) -> the operation on one element."""


@dataclass(frozen=True)
class FlatCall(StreamCall):
    """A loop over adjacent elements, which can be combined with loops of the same program in one launch.

    batch: source of the combined kernel. count: number of elements. addresses: addresses of the inputs and outputs.
    """

    batch: str = field(kw_only=True, repr=False)
    count: int = field(kw_only=True)
    addresses: tuple[int, ...] = field(kw_only=True)


def element_kernel(runtime: Runtime, op: str, elements_of: ElementsOf) -> Kernel:
    """Return the kernel of an op that computes each output element from one element of each broadcast input.

    The kernel keeps the layout of the inputs that have the shape of the result.
    """
    return Kernel(op, "gpu", LIBRARY, 0, FLOATS, _arrange, partial(_bind, runtime, elements_of))


def _arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    result = outputs[0]
    full = [spec.shape == result.shape for spec in inputs]
    # For a cast, the last offer is the requested layout of the output; the kernel uses the layout of the input.
    offered = offered[: len(inputs)]
    layout = offered_layout(result, [offer for offer, each in zip(offered, full, strict=True) if each])
    layouts = [
        _in_layout(spec, layout if each else offer) for spec, each, offer in zip(inputs, full, offered, strict=True)
    ]
    given = [_in_layout(spec, layout) for spec in outputs]
    if len(broadcast(list(zip(inputs, layouts, strict=True)), (result, given[0])).axes) > AXES:
        return None
    replaceable = [
        (i, o)
        for (i, o) in product(range(len(inputs)), range(len(outputs)))
        if full[i] and numpy_dtype(inputs[i].dtype).itemsize == numpy_dtype(outputs[o].dtype).itemsize
    ]
    return Arrangement(tuple(layouts), tuple(given), in_place=tuple(replaceable))


def _in_layout(spec: Spec, like: Layout | None) -> Layout:
    return channels_last(spec) if like is not None and like.tag == CHANNELS_LAST else plain(spec)


def _bind(
    runtime: Runtime, elements_of: ElementsOf, attributes: Attributes, arrangement: Arrangement, buffers: Buffers
) -> StreamCall:
    inputs, outputs = buffers.inputs, buffers.outputs
    elements = elements_of(attributes, *buffers.specs)
    loops = broadcast([(each.spec, each.layout) for each in inputs], (outputs[0].spec, outputs[0].layout))
    wide = loops.wide
    if wide is not None:
        return _flat_call(runtime, elements, wide, loops.count, buffers)
    index = "unsigned int" if loops.count < _SMALL else "int64"
    function = runtime.function(strided(elements, index), "strided")
    sizes = [np.int64(loops.count), np.int32(len(loops.axes)), *_along(loops)]
    return launch(function, blocks_for(runtime, loops.count), [*buffers.inputs, *buffers.outputs, *sizes])


def _flat_call(runtime: Runtime, elements: Elements, wide: tuple[bool, ...], count: int, buffers: Buffers) -> FlatCall:
    function = runtime.function(flat(elements, wide), "flat")
    blocks = blocks_for(runtime, -(-count // elements.pack))
    alone = launch(function, blocks, [*buffers.inputs, *buffers.outputs, np.int64(count)])
    addresses = tuple(operand.address for operand in (*buffers.inputs, *buffers.outputs))
    return FlatCall(alone.enqueue, alone.keep, batch=batch(elements, wide), count=count, addresses=addresses)


def _along(loops: Broadcast) -> list[Argument]:
    """Return the extent and the strides of each of AXES axes; missing axes have extent 1."""
    missing = [(1, *(0 for _ in loops.axes[0][1:]))] * (AXES - len(loops.axes))
    return [np.int64(number) for row in (*loops.axes, *missing) for number in row]
