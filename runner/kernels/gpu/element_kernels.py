"""Kernels of element-wise ops: one pass over memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import numpy as np

from runner.kernels.contract import FLOATS, Arrangement, Attributes, Buffers, Kernel, Layout, Offers, Spec, Specs, plain
from runner.kernels.gpu.broadcasting import Broadcast, broadcast
from runner.kernels.gpu.calls import StreamCall, blocks_for, launch
from runner.kernels.gpu.element_loops import AXES, Elements, batch, flat, strided
from runner.kernels.gpu.layouts import CHANNELS_LAST, channels_last, offered_layout
from runner.kernels.gpu.runtime import Argument, Runtime
from runner.kernels.memory import numpy_dtype

LIBRARY = "cuda"
_SMALL = 1 << 31

ElementsOf = Callable[[Attributes, Sequence[Spec], Sequence[Spec]], Elements]
"""(attributes, input specs, output specs) -> the operation on one element."""


@dataclass(frozen=True)
class FlatCall(StreamCall):
    """A loop over adjacent elements, which can be combined with loops of the same program.

    batch: source of the combined kernel. count: number of elements. addresses: of inputs, then of outputs.
    """

    batch: str = field(kw_only=True, repr=False)
    count: int = field(kw_only=True)
    addresses: tuple[int, ...] = field(kw_only=True)


def element_kernel(runtime: Runtime, op: str, elements_of: ElementsOf) -> Kernel:
    """Return the kernel of an op that computes each output element from one element of each broadcast input.

    It takes the layout of the inputs that have the shape of the result.
    """
    return Kernel(op, "gpu", LIBRARY, 0, FLOATS, _arrange, partial(_bind, runtime, elements_of))


def _arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    result = outputs[0]
    full = [spec.shape == result.shape for spec in inputs]
    # Only a cast is also offered the requested layout of its output; it takes that of its input.
    offered = offered[: len(inputs)]
    layout = offered_layout(result, [offer for offer, each in zip(offered, full, strict=True) if each])
    asked = [
        _in_layout(spec, layout if each else offer) for spec, each, offer in zip(inputs, full, offered, strict=True)
    ]
    given = [_in_layout(spec, layout) for spec in outputs]
    if len(broadcast(list(zip(inputs, asked, strict=True)), (result, given[0])).axes) > AXES:
        return None
    replaceable = [
        (i, o)
        for (i, o) in product(range(len(inputs)), range(len(outputs)))
        if full[i] and numpy_dtype(inputs[i].dtype).itemsize == numpy_dtype(outputs[o].dtype).itemsize
    ]
    return Arrangement(tuple(asked), tuple(given), in_place=tuple(replaceable))


def _in_layout(spec: Spec, like: Layout | None) -> Layout:
    return channels_last(spec) if like is not None and like.tag == CHANNELS_LAST else plain(spec)


def _bind(
    runtime: Runtime, elements_of: ElementsOf, attributes: Attributes, arrangement: Arrangement, buffers: Buffers
) -> StreamCall:
    inputs, outputs = buffers.inputs, buffers.outputs
    elements = elements_of(attributes, [each.spec for each in inputs], [each.spec for each in outputs])
    loops = broadcast([(each.spec, each.layout) for each in inputs], (outputs[0].spec, outputs[0].layout))
    wide = loops.wide
    if wide is not None:
        return _flat_call(runtime, elements, wide, loops.count, buffers)
    index = "unsigned int" if loops.count < _SMALL else "int64"
    function = runtime.function(strided(elements, index), "strided")
    arguments = [*_pointers(buffers), np.int64(loops.count), np.int32(len(loops.axes)), *_along(loops)]
    return launch(function, blocks_for(runtime, loops.count), arguments)


def _flat_call(runtime: Runtime, elements: Elements, wide: tuple[bool, ...], count: int, buffers: Buffers) -> FlatCall:
    function = runtime.function(flat(elements, wide), "flat")
    blocks = blocks_for(runtime, -(-count // elements.pack))
    alone = launch(function, blocks, [*_pointers(buffers), np.int64(count)])
    addresses = tuple(operand.address for operand in (*buffers.inputs, *buffers.outputs))
    return FlatCall(
        alone.enqueue,
        alone.keep,
        batch=batch(elements, wide),
        count=count,
        addresses=addresses,
    )


def _pointers(buffers: Buffers) -> list[Argument]:
    return [np.uintp(operand.address) for operand in (*buffers.inputs, *buffers.outputs)]


def _along(loops: Broadcast) -> list[Argument]:
    """Return extent and strides of AXES axes; missing axes have extent 1."""
    missing = [(1, *(0 for _ in loops.axes[0].strides))] * (AXES - len(loops.axes))
    rows = [*((axis.extent, *axis.strides) for axis in loops.axes), *missing]
    return [np.int64(number) for row in rows for number in row]
