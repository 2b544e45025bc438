"""Our own kernels for convolution, fused convolution, max and average pooling, and the gradients of these ops.

Each convolution, for any groups, strides, dilations, padding and float dtype, is a matrix product whose factors are
gathered during the computation. The weight gradient is a small matrix of long sums: blocks sum separate ranges of
pixels, and the partial sums are added in a fixed order. The pooling gradient of a pixel is a sum over the windows that
contain the pixel. Pooling adds in the order of the reference kernels. Images may be in C order or have channels last.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from runner.kernels.contract import Arrange, Arrangement, Attributes, Buffers, Kernel, Offers, Specs
from runner.kernels.elementwise import computed_in
from runner.kernels.gpu.channels import channel_sums, sums_bytes
from runner.kernels.gpu.layouts import CHANNELS_LAST, arrange_alike, innermost_channels
from runner.kernels.gpu.runtime import (
    Argument,
    Bind,
    Runtime,
    Size,
    StreamCall,
    blocks_for,
    in_order,
    launch,
    own_kernels,
)
from runner.kernels.gpu.source import text
from runner.kernels.memory import address_of, numpy_dtype

Ints = tuple[int, ...]

TILE = 64
"""The number of rows, and of columns, of the tile that one block computes."""

_BLOCKS = 4
"""Blocks per multiprocessor for a weight gradient."""

_LEAST_DEPTH, _MOST_DEPTH = 256, 1 << 16
"""Limits of the number of pixels that a block sums: enough for speed, few enough for the precision of float32 sums."""

_MOST_SPLITS = 1024

PACK_BYTES = 16
"""The maximum number of bytes that a thread reads in one access."""


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels of convolution, fused convolution, and pooling, and of their gradients."""
    gradients = partial(_arrange_gradients, runtime.multiprocessors), _bind_gradients
    table: dict[str, tuple[Arrange, Bind]] = {
        "conv2d": (arrange_alike, _bind_forward),
        "conv2d_fused": (_arrange_fused, _bind_forward),
        "conv2d_input_gradient": (arrange_alike, _bind_input_gradient),
        "conv2d_weight_gradient": gradients,
        "conv2d_weight_bias_gradient": gradients,
    }
    pools = ("max_pool", "max_pool_gradient", "max_pool_gather", "avg_pool", "avg_pool_gradient")
    table |= {op: (arrange_alike, partial(_bind_pooling, op)) for op in pools}
    return own_kernels(runtime, table)


@dataclass(frozen=True)
class Geometry:
    """The shapes of x, filters and y, and the attributes of the windows."""

    attributes: Attributes
    x: Ints
    w: Ints
    y: Ints
    channels_last: bool

    @property
    def pixels(self) -> int:
        """The number of pixels of y in all examples."""
        return self.y[0] * math.prod(self.y[2:])

    @property
    def taps(self) -> int:
        """The number of values in a filter."""
        return math.prod(self.w[1:])

    @property
    def groups(self) -> int:
        """The number of groups of channels; each group has separate filters."""
        groups: int = self.attributes["groups"]
        return groups

    @property
    def arguments(self) -> list[Argument]:
        """The arguments that ``convolution.cu`` calls GEOMETRY."""
        top, _, left, _ = self.attributes["padding"]
        numbers = (
            *self.x[1:],
            *self.y[1:],
            *self.w[2:],
            *self.attributes["strides"],
            *self.attributes["dilations"],
            *(top, left, self.groups, int(self.channels_last)),
        )
        return [np.int64(self.x[0]), *map(np.int32, numbers)]

    def splits(self, multiprocessors: int) -> tuple[int, int]:
        """Return the number of ranges of pixels for a weight gradient, and the length of a range."""
        tiles = math.prod(_grid(self.w[0] // self.groups, self.taps, self.groups))
        wanted = min(-(-_BLOCKS * multiprocessors // tiles), -(-self.pixels // _LEAST_DEPTH))
        most = max(1, min(_MOST_SPLITS, 65535 // self.groups))
        wanted = min(max(1, wanted, -(-self.pixels // _MOST_DEPTH)), most)
        depth = max(1, -(-self.pixels // wanted))
        return max(1, -(-self.pixels // depth)), depth


def source(dtype: str, result: str | None = None) -> str:
    """Return the source for images of a dtype. result: dtype of filter gradients, by default the computation dtype."""
    computed = computed_in(dtype)
    return text("convolution", T=dtype, C=computed, R=result or computed)


def _arrange_fused(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement:
    alike = arrange_alike(attributes, inputs, outputs, offered)
    residual = len(inputs) - 1
    return replace(alike, in_place=((residual, 0),) if attributes["residual"] else ())


def _bind_forward(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    """Bind inputs x, w, then bias and residual if the attributes have them, and output y."""
    (x, w), (y,) = buffers.inputs[:2], buffers.outputs
    geometry = Geometry(attributes, x.spec.shape, w.spec.shape, y.spec.shape, y.layout.tag == CHANNELS_LAST)
    bias: Argument = buffers.inputs[2] if attributes.get("bias") else np.uintp(0)
    residual: Argument = buffers.inputs[-1] if attributes.get("residual") else np.uintp(0)
    return launch(
        runtime.function(source(x.spec.dtype), "conv2d"),
        _grid(geometry.pixels, w.spec.shape[0] // geometry.groups, geometry.groups),
        [x, w, bias, residual, y, np.int32(attributes.get("relu", False)), *geometry.arguments],
    )


def _weight_gradient(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    """Return the call that computes dw, the first output, from dy and x, with partial sums in scratch memory."""
    (dy, x), dw = buffers.inputs, buffers.outputs[0]
    geometry = Geometry(attributes, x.spec.shape, dw.spec.shape, dy.spec.shape, dw.layout.tag == CHANNELS_LAST)
    splits, depth = geometry.splits(runtime.multiprocessors)
    program = source(x.spec.dtype, dw.spec.dtype)
    partials = np.uintp(address_of(buffers.scratch))
    rows, columns, groups = _grid(dw.spec.shape[0] // geometry.groups, geometry.taps, geometry.groups)
    count = math.prod(dw.spec.shape)
    parts = launch(
        runtime.function(program, "conv2d_weight_gradient"),
        (rows, columns, groups * splits),
        [dy, x, partials, np.int64(depth), *geometry.arguments],
    )
    total = launch(
        runtime.function(program, "sum_of_splits"),
        blocks_for(runtime, count),
        [partials, dw, np.int64(count), np.int32(splits)],
    )
    return in_order([parts, total])


def _arrange_gradients(
    multiprocessors: int, attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers
) -> Arrangement:
    alike = arrange_alike(attributes, inputs, outputs, offered)
    (dy, x), dw = inputs, outputs[0]
    geometry = Geometry(attributes, x.shape, dw.shape, dy.shape, alike.outputs[0].tag == CHANNELS_LAST)
    itemsize = numpy_dtype(computed_in(dy.dtype)).itemsize
    weights = geometry.splits(multiprocessors)[0] * math.prod(dw.shape) * itemsize
    is_last = innermost_channels(dy, alike.inputs[0])
    bias = sums_bytes(multiprocessors, dy, is_last) if len(outputs) > 1 else 0
    # The bias gradient is computed after the weight gradient and uses the same scratch memory.
    return replace(alike, scratch_bytes=max(weights, bias))


def _bind_gradients(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    """Bind inputs dy, x and outputs dw and, if there are two, db."""
    calls = [_weight_gradient(runtime, attributes, buffers)]
    for db in buffers.outputs[1:]:
        dy, scratch = buffers.inputs[0], address_of(buffers.scratch)
        is_last = innermost_channels(dy.spec, dy.layout)
        calls.append(channel_sums(runtime, dy.spec, is_last, dy.address, scratch, db.address, db.spec.dtype))
    return in_order(calls)


def _bind_input_gradient(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (dy, w), dx = buffers.inputs, buffers.outputs[0]
    geometry = Geometry(attributes, dx.spec.shape, w.spec.shape, dy.spec.shape, dx.layout.tag == CHANNELS_LAST)
    pixels = dx.spec.shape[0] * math.prod(dx.spec.shape[2:])
    return launch(
        runtime.function(source(dy.spec.dtype), "conv2d_input_gradient"),
        _grid(pixels, w.spec.shape[1], geometry.groups),
        [dy, w, dx, *geometry.arguments],
    )


def _grid(rows: int, columns: int, groups: int) -> Size:
    """Return the grid of blocks for one product of shape (rows, columns) per group."""
    return (max(1, -(-rows // TILE)), max(1, -(-columns // TILE)), groups)


def pack_of(dtype: str, channels: int) -> int:
    """Return the number of channels per read: as many as fit in 16 bytes if that divides ``channels``, else 1."""
    full = PACK_BYTES // numpy_dtype(dtype).itemsize
    return full if channels % full == 0 else 1


def _bind_pooling(op: str, runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    x_shape = attributes.get("input_shape", buffers.inputs[0].spec.shape)
    y_shape = (buffers.inputs if op.endswith("_gradient") else buffers.outputs)[0].spec.shape
    spec, layout = buffers.outputs[0].spec, buffers.outputs[0].layout
    channels = x_shape[1] if layout.tag == CHANNELS_LAST else 1
    pack = pack_of(spec.dtype, channels)
    count = math.prod(spec.shape) // pack
    top, _, left, _ = attributes["padding"]
    windows = (*attributes["window"], *attributes["strides"], top, left)
    sizes = map(np.int32, (*x_shape[2:], *y_shape[2:], channels // pack, *windows))
    arguments: list[Argument] = [*buffers.inputs, *buffers.outputs, np.int64(count), *sizes]
    if "count_padding" in attributes:
        arguments.append(np.int32(attributes["count_padding"]))
    program = f"#define PACK {pack}\n{text('pooling', T=spec.dtype, C=computed_in(spec.dtype))}"
    return launch(runtime.function(program, op), blocks_for(runtime, count), arguments)
